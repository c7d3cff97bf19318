#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# iSCSI Extensions for RDMA, initiator and target of the kernel, on one device. The kernel offers
# both in the initial namespace only.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"
# shellcheck source=storage_iser.sh
. "$(dirname "$0")/storage_iser.sh"

# The session uses iSER, and a queue pair of the device.
over_rdma() {
	iscsiadm -m session | grep -q '^iser:' || die "$(iscsiadm -m session)"
	! no_qp || die "$(rdma resource show qp)"
}

# 32 pieces of one to seven sectors, each somewhere in a page of its own, form one command. A device
# that registers whole pages only would need more commands. The octets are read back into different
# pieces.
gaps() {
	local before
	[ "$(cat "/sys/block/${DISK##*/}/queue/virt_boundary_mask")" = 0 ] || die 'the disk requires whole pages'
	before=$(($(commands read) + $(commands write)))
	python3 - "$DISK" <<'END'
import mmap, os, sys

def pieces(memory, lengths, shift):
    return [memory[at * 4096 + 512 * ((at + shift) % (9 - n)):][:512 * n] for at, n in enumerate(lengths)]

disk = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
out, back = (memoryview(mmap.mmap(-1, 32 * 4096)) for _ in range(2))
out[:] = os.urandom(len(out))
lengths = [7, 1, 3, 5] * 8
there, here = pieces(out, lengths, 3), pieces(back, lengths[::-1], 1)
octets = b"".join(there)
assert os.pwritev(disk, there, 1 << 20) == len(octets)
assert os.preadv(disk, here, 1 << 20) == len(octets)
assert b"".join(here) == octets
END
	[ $(($(commands read) + $(commands write) - before)) = 2 ] || die "$(cat "/sys/block/${DISK##*/}/stat")"
}

longer_than_the_keep_alive() {
	node -o update -n 'node.conn[0].timeo.noop_out_interval' -v 2
	node -o update -n 'node.conn[0].timeo.noop_out_timeout' -v 5
	connect
	kept_waiting 'ping timeout of 5 secs expired'
	disconnect
}

ends_up self
target_up
initiator_up
try login 40 connected over_rdma
disk_cases
try gaps 40 connected gaps
try longer_than_the_keep_alive 90 longer_than_the_keep_alive
! can_starve || try starved 150 starved
initiator_down
target_down
finish
