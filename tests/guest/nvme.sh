#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# NVMe over Fabrics, host and target of the kernel: consumers that use fast registration, and whose
# peer invalidates their keys. Both are on one device of the initial namespace, the only one that
# the kernel's target and host use.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"
# shellcheck source=storage_nvme.sh
. "$(dirname "$0")/storage_nvme.sh"

# The target invalidates the host's keys with its responses, so that the host never has to post a
# Local Invalidate.
remote_invalidation() {
	can_trace || skip_case 'this kernel has no kprobes'
	{
		echo 'p:answered nvme_rdma:nvme_rdma_recv_done'
		echo 'p:had_to_invalidate nvme_rdma:nvme_rdma_inv_rkey_done'
	} >$TRACING/kprobe_events
	echo 1 >$TRACING/events/kprobes/enable
	connected verified 4
	echo 0 >$TRACING/events/kprobes/enable
	cat $TRACING/kprobe_profile
	awk '{ n[$1] = $2 } END { exit !(n["answered"] > 100 && n["had_to_invalidate"] == 0) }' \
		$TRACING/kprobe_profile || die "$(tr '\n' ' ' <$TRACING/kprobe_profile)"
	echo >$TRACING/kprobe_events
}

# Records the vector of each completion queue from the beginning, because queues are reused.
note_vectors() {
	can_trace || return 0
	echo 1 >$TRACING/events/rdma_core/cq_alloc/enable
}

# The consumer of a completion queue is notified on the processor of the completion vector.
on_the_processors_of_the_vectors() {
	[[ $(uname -v) != *PREEMPT_RT* ]] ||
		skip_case 'with PREEMPT_RT the processor at hand notifies the consumer'
	can_trace || skip_case 'this kernel has no trace events'
	echo 1 >$TRACING/events/rdma_core/cq_schedule/enable
	connected verified 4
	echo 0 >$TRACING/events/rdma_core/cq_schedule/enable
	awk '
		{ match($0, /cq\.id=[0-9]+/); id = substr($0, RSTART + 6, RLENGTH - 6) }
		/ cq_alloc: / { match($0, /comp_vector=[0-9]+/); vector[id] = substr($0, RSTART + 12, RLENGTH - 12) }
		/ cq_schedule: / && id in vector {
			match($0, /\[[0-9]+\]/)
			cpu = substr($0, RSTART + 1, RLENGTH - 2) + 0
			if (cpu == vector[id]) right[cpu]++; else wrong++
		}
		END {
			for (cpu in right) { n++; print right[cpu], "on", cpu }
			print wrong + 0, "elsewhere"
			exit !(n > 1 && wrong == 0)
		}' $TRACING/trace >"$TMP/calls" || die "$(tr '\n' ' ' <"$TMP/calls")"
	cat "$TMP/calls"
}

# by_rule ACTION: reads and writes while a rule does this to one of many requests of both ends. The
# host connects again where it ends a connection, and the data is right.
by_rule() {
	local file=/sys/class/infiniband/$DEV_A/inject
	connect -l 60 -c 1
	echo "scope=device every=$((1000 / SLOW)) do=$1" >"$file"
	verified 32
	cat "$file"
	! grep 'hits=0$' "$file" || die 'the rule has hit nothing'
	echo clear >"$file"
	disconnect
}

# A connection that is lost while the host connects: NVMe notices it by its own limit of admin
# commands, which is a minute otherwise. Then the host connects.
lost_as_it_connects() {
	local limit=/sys/module/nvme_core/parameters/admin_timeout file=/sys/class/infiniband/$DEV_A/inject before
	before=$(cat $limit)
	echo $((2 * SLOW)) >$limit
	echo 'op=send nth=3 times=1 do=reset' >"$file"
	took nvme_fails
	grep 'hits=1$' "$file" || die 'the rule has hit nothing'
	echo clear >"$file"
	[ "$TOOK" -ge $((2000 * SLOW)) ] || die "it fails after $TOOK ms"
	connected verified 1
	echo "$before" >$limit
}
nvme_fails() { ! nvme_over 30 connect -n "$NQN" -i 2 || die 'it connects'; }

longer_than_the_keep_alive() {
	connect -k $((5 * SLOW)) -l $((60 * SLOW)) -c 1
	kept_waiting 'Successfully reconnected'
	disconnect
}

ends_up self
note_vectors
target_up
initiator_up
try discover 40 discover
disk_cases
try on_the_processors_of_the_vectors 90 on_the_processors_of_the_vectors
try remote_invalidation 90 remote_invalidation
try late_requests 90 by_rule delay=20ms
try reset_connections 90 by_rule reset
try longer_than_the_keep_alive 90 longer_than_the_keep_alive
try lost_as_it_connects 90 lost_as_it_connects
try load_notices 60 load_notices
! can_starve || try starved 150 starved
# Must be last: it takes the target down, which stops lockdep (storage_nvme.sh).
try device_deleted_under_load 120 device_deleted_under_load
initiator_down
target_down
finish
