#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The kernel's network block device over RTRS (RNBD), client and server, on two devices of the
# initial namespace, the only one that both use. While RTRS gives each buffer a new key after use
# (`always_invalidate`, its default), the server sends that key in a Send with Immediate.
# Connections of rdma_cm have this operation if `extensions` is set at both devices.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"

CLIENT=/sys/class/rnbd-client/ctl
LONGEST=124

# target_up [PARAMETER of rtrs-server...]: serves any disk to any client. It has few buffers,
# because each is 128 KiB.
target_up() {
	modprobe rtrs-server sess_queue_depth=64 "$@"
	modprobe rnbd-server
}

target_down() {
	within 30 rmmod rnbd-server
	within 30 rmmod rtrs-server
}

# map: writes a mapping command to rnbd-client; fails with the errno of the write.
map() {
	echo "sessname=riwarp path=ip:$IP4_A,ip:$IP4_B device_path=/dev/ram0" |
		within 60 tee "$CLIENT/map_device" >/dev/null
}

connect() {
	map || die "map: $?"
	eventually 10 disk_is_there || die 'no disk'
}

disk_is_there() { first_disk /sys/block/rnbd*; }

disconnect() {
	echo normal >"/sys/block/${DISK##*/}/rnbd/unmap_device"
	eventually 20 disk_is_gone
}

# both_set A B: sets `extensions` of the client's device and of the server's.
both_set() {
	setting - "$DEV_A" extensions "$1"
	setting - "$DEV_B" extensions "$2"
}

# refused A B: checks that mapping fails with these settings. The server's first answer is rejected
# when it is posted, which RTRS logs, and no queue pair stays.
refused() {
	both_set "$1" "$2"
	dmesg -C
	! map || die 'mapped'
	dmesg
	dmesg | grep -qE 'Posting RDMA-[-A-Za-z]* to QP failed, err: -(EOPNOTSUPP|95)' || die 'refused for another reason'
	! disk_is_there || die 'a disk'
	eventually 30 no_qp || die "left: $(rdma resource show qp)"
}

# Without new keys, RTRS needs no Send with Immediate.
without_new_keys() {
	target_down
	target_up always_invalidate=N
	both_set 0 0
	connected verified 8
}

ends_up initial
disk_in_memory
target_up
modprobe rnbd-client
try refused 90 refused 0 0
try refused_by_the_server 90 refused 1 0
try refused_by_the_client 90 refused 0 1
both_set 1 1
try blocks 60 connected blocks
for depth in 1 32; do try "verified_$depth" 90 connected verified "$depth"; done
try large 90 connected large
try file_system 60 connected file_system
try cycles 150 cycles "${CYCLES:-5}"
try without_new_keys 90 without_new_keys
within 30 rmmod rnbd-client
target_down
finish
