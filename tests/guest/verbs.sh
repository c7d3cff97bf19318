#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The verbs test programs, each on one device, with both ends in one process.
#
# PROGRAMS: runs these programs only, on a device of TYPE. CORRUPT_SECONDS: the duration of
# corrupt_random.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# run PROGRAM...: runs verbs test programs.
run() {
	local program
	for program; do
		case $program in extensions | inject_connections) other_device ;; esac
		[ "$program" != dmabuf ] || test_module exporter
		[ "$program" != release ] || test_module cmqueue
		NETDEV=$NET_B relay $((150 + ${CORRUPT_SECONDS:-0})) "$VERBS_DIR/$program" "$IP4_B"
	done
}

# other_device: adds a second device, at the address OTHER.
other_device() {
	[ -n "${OTHER:-}" ] || address_add - "vb$ENDS_COUNT" 10.73.0.1/24
	export OTHER=10.73.0.1
	link_add - "${TYPE}o" "$TYPE" "vb$ENDS_COUNT"
}

# unloaded_while_many_wait: kills a process of which many queue pairs wait for receives, and unloads
# the module at once: nothing that looks for their receives is left.
unloaded_while_many_wait() {
	local before program
	before=$(counter "$DEV_B" rx_receive_waits)
	WAITERS=60 CASE=many_waiting_queue_pairs_use_little_cpu "$VERBS_DIR/waits" "$IP4_B" &
	program=$!
	eventually 40 waits_begun $((before + 60)) || die 'too few wait'
	kill -KILL "$program"
	wait "$program" || true
	unloads
}

waits_begun() { [ "$(counter "$DEV_B" rx_receive_waits)" -ge "$1" ]; }

programs='query limits notify sends inject inject_verbs inject_events inject_connections inject_inside strict waits oneway rdma once order sge iova rereg dmabuf odp implicit revoke resources srq cqfull flush privdata
connect release found'
ends_up self
# The library determines which operations can be posted and how the shared queues are laid out.
if [ "$TYPE" = riwarp ]; then
	export EXTENSIONS=1
	# shellcheck disable=SC2086
	run ${PROGRAMS:-$programs extensions marked masked corrupt corrupt_random}
	[ -z "${PROGRAMS:-}" ] || finish
	unset EXTENSIONS OTHER
	ends_down
	TYPE=riwarp_siw
	programs='query limits notify sends inject inject_verbs inject_events inject_connections inject_inside strict waits oneway rdma sge rereg dmabuf odp resources srq cqfull release found'
	ends_up self
fi
# shellcheck disable=SC2086
run ${PROGRAMS:-$programs garbage corrupt_random}
try unloaded_while_many_wait 60 unloaded_while_many_wait
finish
