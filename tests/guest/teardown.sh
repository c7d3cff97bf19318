#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Removal under load: killed programs, removed devices and modules, netdevs that go down.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# load_start OPERATION: starts a transfer without end; SERVER and CLIENT are the processes.
load_start() {
	start "$NS_B" "$TMP/server.$BASHPID" within 100 "ib_$1_bw" -R -F -d "$DEV_B" -p "$PORT" \
		-s 65536 --run_infinitely
	SERVER=$STARTED
	wait_listen "$PORT"
	local log=$TMP/client.$BASHPID
	start "$NS_A" "$log" within 100 "ib_$1_bw" -R -F -d "$DEV_A" -p "$PORT" \
		-s 65536 --run_infinitely "$IP4_B"
	CLIENT=$STARTED
	eventually 40 transfers || die "no load: $(last_line "$log")"
}

# transfers: succeeds if octets move on the veth pair.
transfers() {
	local before after
	before=$(octets)
	sleep 0.3
	after=$(octets)
	[ $((after - before)) -gt $((500000 / SLOW)) ]
}

octets() { in_ns "$NS_A" cat "/sys/class/net/$NET_A/statistics/tx_bytes" "/sys/class/net/$NET_A/statistics/rx_bytes" | awk '{ s += $1 } END { print s }'; }

# kill_hard PROCESS...: kills the programs that these `timeout` processes run, all at once.
kill_hard() {
	local IFS=,
	pkill -KILL -P "$*" || die 'nothing to kill'
}

load_stop() {
	kill "$CLIENT" "$SERVER" 2>/dev/null || true
	wait "$CLIENT" "$SERVER" 2>/dev/null || true
}

# Checks after each case: no objects are left, and a new connection works.
all_is_well() {
	nothing_left 10 qp cm_id
	PORT=$((PORT + 1))
	rping_pair 4 3 -V
}

killed() {
	local operation=$1 end=$2
	load_start "$operation"
	kill_hard "${!end}"
	# The client's device must notice; some programs wait forever on a dead connection.
	if [ "$end" = SERVER ]; then
		eventually 20 none_in_rts || die "$(rdma resource show qp link "$DEV_A")"
	fi
	load_stop
	all_is_well
}

none_in_rts() { ! rdma resource show qp link "$DEV_A" | grep 'state RTS'; }

killed_both() {
	load_start "$1"
	kill_hard "$CLIENT" "$SERVER"
	load_stop
	all_is_well
}

# A killed process leaves neither objects nor a listener.
killed_listener() {
	start "$NS_B" "$TMP/listener" within 50 rping -s -P -a "$IP4_B" -p "$PORT"
	wait_listen "$PORT"
	kill_hard "$STARTED"
	wait "$STARTED" 2>/dev/null || true
	nothing_left 10 qp cm_id
	rping_pair 4 3 -V
}

link_deleted_under_load() {
	load_start "$1"
	# Removes the device of one end; the command must return although programs have the device
	# open.
	if [ "$2" = A ]; then
		within 30 ip netns exec "$NS_A" rdma link del "$DEV_A" || die "rdma link del: $?"
		if link_exists "$NS_A" "$DEV_A"; then die 'still there'; fi
	else
		within 30 ip netns exec "$NS_B" rdma link del "$DEV_B" || die "rdma link del: $?"
		if link_exists "$NS_B" "$DEV_B"; then die 'still there'; fi
	fi
	load_stop
	if [ "$2" = A ]; then
		link_add "$NS_A" "$DEV_A" "$TYPE" "$NET_A"
	else
		link_add "$NS_B" "$DEV_B" "$TYPE" "$NET_B"
	fi
	all_is_well
}

netdev_deleted_under_load() {
	load_start write
	within 30 ip -n "$NS_A" link del "$NET_A" || die "ip link del: $?"
	if link_exists "$NS_A" "$DEV_A" || link_exists "$NS_B" "$DEV_B"; then die 'still there'; fi
	load_stop
	ends_down
	ends_up netns
	all_is_well
}

netdev_down_under_load() {
	load_start write
	ip -n "$NS_A" link set "$NET_A" down
	eventually 5 link_state_is "$NS_A" "$DEV_A" DOWN || die 'state not DOWN'
	sleep 1
	load_stop
	ip -n "$NS_A" link set "$NET_A" up
	# An interface that goes down loses its IPv6 address.
	ip -n "$NS_A" addr replace "$IP6_A/64" dev "$NET_A" nodad
	eventually 5 link_state_is "$NS_A" "$DEV_A" ACTIVE || die 'state not ACTIVE'
	all_is_well
}

# TCP retransmits after a short interruption.
netdev_down_for_a_moment() {
	load_start write
	ip -n "$NS_A" link set "$NET_A" down
	sleep 0.2
	ip -n "$NS_A" link set "$NET_A" up
	ip -n "$NS_A" addr replace "$IP6_A/64" dev "$NET_A" nodad
	eventually 20 transfers || die 'the transfer does not go on'
	load_stop
	all_is_well
}

# Unloading while programs have devices open either succeeds or is refused at once; after the
# programs have ended, it succeeds.
unloaded_under_load() {
	local rc=0
	load_start "$1"
	within 30 rmmod "$MODULE" 2>"$TMP/rmmod.error" || rc=$?
	[ "$rc" != 124 ] || die 'rmmod hangs'
	[ "$rc" = 0 ] || grep -q 'in use' "$TMP/rmmod.error" || die "$(cat "$TMP/rmmod.error")"
	load_stop
	[ "$rc" = 0 ] || eventually 10 rmmod "$MODULE" || die 'rmmod does not work afterwards'
	ends_down
	modprobe "$MODULE"
	ends_up netns
	all_is_well
}

# Unloading while programs are killed: connections exist, but no process holds the module.
unloaded_while_programs_die() {
	load_start write
	kill_hard "$CLIENT" "$SERVER"
	eventually 10 rmmod "$MODULE" || die 'rmmod does not work'
	load_stop
	ends_down
	ends_up netns
	all_is_well
}

namespace_exits_under_load() {
	load_start write
	# Each goes with its last process.
	ip netns del "$NS_A"
	ip netns del "$NS_B"
	kill_hard "$CLIENT" "$SERVER"
	load_stop
	eventually 10 no_devices || die "left: $(rdma link show)"
	ends_up netns
	all_is_well
}

no_devices() { [ -z "$(rdma link show)" ]; }

# Devices are added and deleted while connections are being made.
links_flap() {
	local i callers
	start "$NS_A" "$TMP/callers" within 60 bash -c "while :; do
		within 2 rping -c -a $IP4_B -p $PORT -C 1; done"
	callers=$STARTED
	for i in {1..8}; do
		start "$NS_B" "$TMP/flap" within 20 rping -s -P -a "$IP4_B" -p "$PORT"
		sleep 0.5
		within 30 ip netns exec "$NS_B" rdma link del "$DEV_B" || die "rdma link del $i"
		kill "$STARTED" 2>/dev/null || true
		wait "$STARTED" 2>/dev/null || true
		in_ns "$NS_B" rdma link add "$DEV_B" type "$TYPE" netdev "$NET_B" || die "rdma link add $i"
	done
	kill "$callers"
	wait "$callers" 2>/dev/null || true
	all_is_well
}

# A process lives on with an id that it has rejected after it had accepted. `ib_core` tells the
# modules of a removal in the reverse order of their loading: `rdma_cm`, which ends the id, only
# after `ib_uverbs`, which ends the queue pair.
link_deleted_beside_a_rejected_id() {
	local module
	ends_down
	for module in rdma_ucm "$MODULE" ib_uverbs rdma_cm; do
		eventually 10 rmmod "$module" || die "rmmod $module does not work"
	done
	modprobe rdma_cm
	ends_up netns
	start "$NS_B" "$TMP/stays" within 100 env ROLE=stays_with_a_rejected_id PORT="$PORT" \
		"$VERBS_DIR/release" "$IP4_B"
	eventually 20 grep -q rejected "$TMP/stays" || die "not rejected: $(last_line "$TMP/stays")"
	within 30 ip netns exec "$NS_B" rdma link del "$DEV_B" || die "rdma link del: $?"
	kill_hard "$STARTED"
	wait "$STARTED" 2>/dev/null || true
	link_add "$NS_B" "$DEV_B" "$TYPE" "$NET_B"
	all_is_well
}

# run NAME SECONDS COMMAND...: runs a case with ends of its own, and removes whatever it leaves.
run() {
	local name=$1 limit=$2 x link
	shift 2
	try "$name" "$limit" with_ends "$@"
	for x in $(ip netns list | cut -d ' ' -f 1); do
		for link in $(ip netns exec "$x" rdma link show 2>/dev/null | sed -n 's,^link \([^/]*\)/.*,\1,p'); do
			within 10 ip netns exec "$x" rdma link del "$link" 2>/dev/null || true
		done
		ip netns del "$x" || true
	done
}

with_ends() {
	ends_up netns
	"$@"
	ends_down
}

for operation in write send read; do
	run "client_killed/$operation" 60 killed "$operation" CLIENT
	run "server_killed/$operation" 60 killed "$operation" SERVER
done
run both_killed 60 killed_both write
run killed_listener 60 killed_listener
run netdev_down_for_a_moment 60 netdev_down_for_a_moment
run netdev_down_under_load 60 netdev_down_under_load
for operation in write read; do
	run "link_deleted_under_load/client/$operation" 90 link_deleted_under_load "$operation" A
	run "link_deleted_under_load/server/$operation" 90 link_deleted_under_load "$operation" B
done
run links_flap 80 links_flap
run netdev_deleted_under_load 90 netdev_deleted_under_load
run namespace_exits_under_load 90 namespace_exits_under_load
run unloaded_under_load/write 90 unloaded_under_load write
run unloaded_under_load/send 90 unloaded_under_load send
run unloaded_while_programs_die 90 unloaded_while_programs_die
if [ "$TYPE" = riwarp ]; then
	ends_up self
	UNLOADS=1 relay 100 "$VERBS_DIR/odp" "$IP4_B"
	ends_down
fi
run link_deleted_beside_a_rejected_id 120 link_deleted_beside_a_rejected_id
finish
