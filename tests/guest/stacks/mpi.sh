# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: Open MPI over libfabric's provider for verbs. All ranks are on one device, and
# nothing of them goes through shared memory.

# mpi RANKS COMMAND...: the matching is libfabric's (mtl ofi). Without FI_MR_CACHE_MAX_COUNT=0,
# large messages are wrong, over siw's kernel driver as well: libfabric keeps regions of memory
# that the process has freed and allocated anew.
mpi() {
	local ranks=$1
	shift
	over_rdma 10000 within 150 mpirun.openmpi --allow-run-as-root --oversubscribe -n "$ranks" \
		--mca pml cm --mca mtl ofi --mca osc ^ucx --mca opal_common_ofi_provider_include 'verbs;ofi_rxm' \
		--mca btl_ofi_provider_include 'verbs;ofi_rxm' --mca coll ^ucc,hcoll \
		-x FI_MR_CACHE_MAX_COUNT=0 -x "FI_VERBS_IFACE=$NET_A" "$@"
}

mpi_tests() { mpi "$1" python3 "$GUEST_DIR/stacks/mpi.py" all; }

# Its figures are those of one run in an emulated guest, which compare with nothing.
mpi_figures() {
	mpi 2 python3 "$GUEST_DIR/stacks/mpi.py" figures >"$TMP/figures" || { cat "$TMP/figures"; return 1; }
	cat "$TMP/figures"
	[ "$(grep -c ' us, ' "$TMP/figures")" -ge 4 ]
}

version openmpi openmpi-bin
version mpi4py python3-mpi4py
ends_up self
name=$TYPE/openmpi
try "$name/two_ranks" 200 mpi_tests 2
try "$name/four_ranks" 200 mpi_tests 4
try "$name/figures" 200 mpi_figures
ends_down
