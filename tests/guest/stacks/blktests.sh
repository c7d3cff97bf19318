# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh, run by PARTS=blktests only: the group nvme of blktests over RDMA. Debian has no
# package of blktests, so a checkout of it is at /mnt/share (qemu/run --share DIR). It makes its
# devices by the name of the kernel's siw, which is riwarp here, by the lines of docs/admin.md;
# TYPES=siw runs it over the kernel's siw. BLKTESTS has the names of the tests (nvme/NNN).

blktests=/tmp/blktests

# siw_is TYPE: which module makes the devices of the link type siw.
siw_is() {
	local conf=/etc/modprobe.d/siw.conf
	modprobe -r siw riwarp
	rm -f $conf
	[ "$1" = siw ] || grep -E '^(options|alias) .*siw' /riwarp/docs/admin.md >$conf
}

# blktests_run NAME: one test. Devices of the other module are no result.
blktests_run() {
	local out=$TMP/blktests other=siw
	[ "$TYPE" != siw ] || other=riwarp
	cd $blktests
	./check "$1" >"$out" 2>&1 || true
	cat "$out"
	find results -path "*/$1.*" | grep -E '(full|bad|dmesg)$' | xargs -r tail -n 30
	[ ! -e "/sys/module/$other" ] || die "$other was loaded"
	if grep -q '\[failed\]' "$out"; then die "$(grep -m 1 '\[failed\]' "$out")"; fi
	if ! grep -q '\[passed\]' "$out"; then skip_case "$(grep -A 1 '\[not run\]' "$out" | tail -n 1)"; fi
}

if [ ! -x /mnt/share/check ]; then
	not_ok "$SCRIPT/$TYPE/blktests" 'no checkout of blktests at /mnt/share: give qemu/run --share DIR'
elif [ "$TYPE" != riwarp_siw ]; then
	cp -r /mnt/share $blktests
	mkdir -p "$TMP/bin"
	ln -s /usr/bin/gawk "$TMP/bin/awk"
	# The guest root has none; check aligns its lines with it.
	printf '#!/bin/sh\nexec cat\n' >"$TMP/bin/column"
	chmod +x "$TMP/bin/column"
	PATH=$TMP/bin:$PATH
	cat >$blktests/config <<-END
		NVMET_TRTYPES=rdma
		NVMET_BLKDEV_TYPES="${NVMET_BLKDEV_TYPES:-device file}"
		NVME_IMG_SIZE=${NVME_IMG_SIZE:-64M}
		NVME_NUM_ITER=10
		QUICK_RUN=1
		TIMEOUT=${TIMEOUT:-10}
	END
	siw_is "$TYPE"
	# A complete system has the node that loads it, and this file.
	modprobe loop
	config=/usr/lib/modules/$(uname -r)/config
	[ ! -e "$config" ] || cp "$config" "/boot/config-$(uname -r)"
	# Those that know RDMA.
	known=$(cd $blktests/tests && grep -l '_require_nvme_trtype\(_is_fabrics\| .*rdma\)' nvme/0[0-9][0-9])
	for test in ${BLKTESTS:-$known}; do
		try "$TYPE/blktests/${test/\//_}" 200 blktests_run "$test"
	done
	siw_is riwarp
	rm -f /etc/modprobe.d/siw.conf
fi
