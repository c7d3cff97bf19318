#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# NVMe over Fabrics, host and target of the kernel: the consumers that register memory fast, and have it
# invalidated by the peer. Both are on one device of the initial namespace, where they have to be.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"

TARGET=/sys/kernel/config/nvmet
NQN=nqn.2014-08.org.nvmexpress:riwarp
DISK=/dev/nvme0n1
SERVICE=4420

# target_up [PARAMETER of nvmet-rdma...]: a disk in memory, for whoever comes.
target_up() {
	local subsystem=$TARGET/subsystems/$NQN port=$TARGET/ports/1
	modprobe -a nvmet nvme-rdma
	modprobe nvmet-rdma "$@"
	disk_in_memory
	mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
	mkdir "$subsystem" "$subsystem/namespaces/1" "$port"
	echo 1 >"$subsystem/attr_allow_any_host"
	echo /dev/ram0 >"$subsystem/namespaces/1/device_path"
	echo 1 >"$subsystem/namespaces/1/enable"
	echo rdma >"$port/addr_trtype"
	echo ipv4 >"$port/addr_adrfam"
	echo "$IP4_B" >"$port/addr_traddr"
	echo "$SERVICE" >"$port/addr_trsvcid"
	ln -s "$subsystem" "$port/subsystems/$NQN"
}

target_down() {
	local subsystem=$TARGET/subsystems/$NQN port=$TARGET/ports/1
	rm "$port/subsystems/$NQN"
	rmdir "$port" "$subsystem/namespaces/1" "$subsystem"
	timeout --foreground 30 rmmod nvmet-rdma
}

# nvme_rdma SECONDS COMMAND [OPTIONS...]
nvme_rdma() {
	local limit=$1 command=$2
	shift 2
	timeout --foreground "$limit" nvme "$command" -t rdma -a "$IP4_B" -s "$SERVICE" "$@"
}

connect() {
	nvme_rdma 30 connect -n "$NQN" -i 2 "$@"
	eventually 10 test -b "$DISK" || die 'no disk'
}

disconnect() { timeout --foreground 30 nvme disconnect -n "$NQN"; }

discover() {
	nvme_rdma 30 discover >"$TMP/found"
	grep -q "subnqn: *$NQN" "$TMP/found" || die "found: $(cat "$TMP/found")"
}

# The target takes the host's keys back as it answers, and the host does not find out otherwise.
remote_invalidation() {
	local tracing=/sys/kernel/tracing
	mountpoint -q $tracing || mount -t tracefs tracefs $tracing
	{
		echo 'p:answered nvme_rdma:nvme_rdma_recv_done'
		echo 'p:had_to_invalidate nvme_rdma:nvme_rdma_inv_rkey_done'
	} >$tracing/kprobe_events
	echo 1 >$tracing/events/kprobes/enable
	connected verified 4
	echo 0 >$tracing/events/kprobes/enable
	cat $tracing/kprobe_profile
	awk '{ n[$1] = $2 } END { exit !(n["answered"] > 100 && n["had_to_invalidate"] == 0) }' \
		$tracing/kprobe_profile || die "$(tr '\n' ' ' <$tracing/kprobe_profile)"
	echo >$tracing/kprobe_events
}

with_shared_receive_queues() {
	target_down
	target_up use_srq=1
	connected verified 8
}

# The device goes while data is on its way; then everything can be taken down.
device_deleted_under_load() {
	local load
	connect -l 3 -c 1
	dd if="$DISK" of=/dev/null bs=64k iflag=direct status=none 2>/dev/null &
	load=$!
	sleep 0.3
	timeout --foreground 30 rdma link del "$DEV_A" || die "rdma link del: $?"
	eventually 30 gone "$load" || die 'a read that never ends'
	disconnect || true
	eventually 30 test ! -e "$DISK" || die 'the disk stays'
}

ends_up self
target_up
try discover 40 discover
try blocks 60 connected blocks
for depth in 1 32; do
	try "verified_$depth" 90 connected verified "$depth"
done
try file_system 60 connected file_system
try cycles 120 cycles "${CYCLES:-5}"
try remote_invalidation 90 remote_invalidation
try with_shared_receive_queues 90 with_shared_receive_queues
try device_deleted_under_load 120 device_deleted_under_load
target_down
finish
