#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Programs of other people over riwarp: rsockets, libfabric, MPI, fio, qperf and more, with verified
# data. It needs the guest root `stacks` (qemu/root-stacks). Each part is a script in stacks/; PARTS
# says which, TYPES for which link types. A case is called TYPE/PROGRAM/WHAT, and a line "version
# PROGRAM PACKAGE VERSION" tells what was tested. tests/stacks-table makes docs/programs.md of both.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# version PROGRAM PACKAGE: prints the line for a program.
version() {
	local found
	found=$(awk -v package="$2" '$1 == "Package:" { name = $2 } $1 == "Version:" && name == package { print $2 }' \
		/var/lib/dpkg/status)
	[ -n "$found" ] || found=$(awk -v package="$2" '$1 == package { print $2 }' /usr/share/riwarp/stacks)
	[ -z "$found" ] || echo "version $1 $2 $found"
}

# over_rdma OCTETS COMMAND...: runs a command; the device of end B must have received so much
# meanwhile, else the program has used something else.
over_rdma() {
	local least=$1 before after status
	shift
	before=$(counter "$DEV_B" rx_bytes)
	"$@"
	# `set -e` has no effect if the caller is a condition.
	status=$?
	[ "$status" = 0 ] || return "$status"
	after=$(counter "$DEV_B" rx_bytes)
	[ $((after - before)) -ge "$least" ] || die "only $((after - before)) octets over $DEV_B instead of $least"
}

# in_a_row COUNT COMMAND...: runs a command again and again, each time with a new port.
in_a_row() {
	local i count=$1
	shift
	for ((i = 1; i <= count; i++)); do
		# Not in a condition, which would hide the failure of a command in the middle.
		echo "run $i of $count"
		"$@"
		PORT=$((PORT + 1))
	done
	PORT=$((PORT - count))
}

# data_file OCTETS: makes a file of octets that have no pattern, and prints its name.
data_file() {
	local file=$TMP/data.$1
	[ -s "$file" ] || head -c "$1" /dev/urandom >"$file"
	echo "$file"
}

# Each run in a row takes one port.
ROW=${ROW:-50}
for TYPE in ${TYPES:-riwarp riwarp_siw riwarp_ib}; do
	case $TYPE in
	# What connects its queue pairs without rdma_cm.
	riwarp_ib) parts='ibverbs rust_ibverbs ucx' ;;
	*) parts='rsockets libfabric mpi fio qperf rdma_core pyverbs ibverbs librpma rust_ibverbs ucx valkey ninep' ;;
	esac
	for part in ${PARTS:-$parts}; do
		# shellcheck source=/dev/null
		. "$GUEST_DIR/stacks/$part.sh"
		PORT=$((PORT + 200))
	done
done
finish
