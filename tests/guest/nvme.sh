#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# NVMe over Fabrics, host and target of the kernel: the consumers that register memory fast, and have it
# invalidated by the peer. Both are on one device of the initial namespace, where they have to be.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"
# shellcheck source=storage_nvme.sh
. "$(dirname "$0")/storage_nvme.sh"

discover() {
	nvme_over 30 discover >"$TMP/found"
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
	impatient
	load_begin 6
	timeout --foreground 30 rdma link del "$DEV_A" || die "rdma link del: $?"
	load_end any
	disconnect || true
	eventually 30 disk_is_gone || die 'the disk stays'
}

# Both ends are here.
each_end() { "$@"; }

ends_up self
target_up
initiator_up
try discover 40 discover
disk_cases
try remote_invalidation 90 remote_invalidation
try with_shared_receive_queues 90 with_shared_receive_queues
! can_starve || try starved 150 starved
try device_deleted_under_load 120 device_deleted_under_load
initiator_down
target_down
finish
