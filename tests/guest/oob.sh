#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Out-of-band connections between two ends in one process; peers that impersonate one of the
# ends; programs that try to bind the port.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# one PROGRAM CASE ADDRESS: runs a case of a verbs program on the device that has the address.
one() { CASE=$2 "$VERBS_DIR/$1" "$3"; }

# A program holds the port when the device is made. The device logs this and works, but for
# out-of-band connects. It holds the port as soon as a queue pair needs it and it is free.
port_in_use_at_device_creation() {
	local program
	rdma link del "$DEV_A"
	python3 -c 'import socket, time
taken = socket.create_server(("127.0.0.1", 24791))
print("there", flush=True)
time.sleep(600)' >"$TMP/taken" &
	program=$!
	eventually 20 grep -q there "$TMP/taken" || die "the program cannot bind the port"
	rdma link add "$DEV_A" type "$TYPE" netdev "$NET_A" || die "there is no device"
	dmesg >"$TMP/dmesg"
	# The debug kernel has no names of errors.
	grep -qE "riwarp: $DEV_A: TCP port 24791 cannot be held \((EADDRINUSE|Error\(98\))\)" "$TMP/dmesg" ||
		die "the device does not log that it cannot hold the port: $(grep riwarp: "$TMP/dmesg" | tail -n 3)"
	[ "$(cat "/sys/class/infiniband/$DEV_A/oob_port")" = 24791 ] || die "the device has another port"
	one sends sizes "$IP4_B" || die "the device does not work"
	if one oob both_ready_then_both_send "$IP4_B" >"$TMP/log"; then die "connected without the port"; fi
	grep -q 'Address already in use' "$TMP/log" || die "$(cat "$TMP/log")"
	kill "$program"
	wait "$program" || true
	one oob both_ready_then_both_send "$IP4_B"
	one ports held_port_cannot_be_bound_while_idle "$IP4_B"
}

# Two devices of a namespace share the port, which is held until neither needs it.
two_devices_share_the_port() {
	ip link add two type dummy
	ip link set two up
	ip addr add 10.71.99.1/24 dev two
	rdma link add two type "$TYPE" netdev two
	one oob both_ready_then_both_send 10.71.99.1
	setting - "$DEV_A" oob_port 0
	one ports held_port_cannot_be_bound_while_idle 10.71.99.1
	setting - "$DEV_A" oob_port 24791
	one oob both_ready_then_both_send "$IP4_B"
	rdma link del two
	one ports held_port_cannot_be_bound_while_idle "$IP4_B"
	# The port is held at addresses that are added later, too.
	ip addr add 10.71.99.2/24 dev "$NET_A"
	one ports held_port_cannot_be_bound_while_idle 10.71.99.2
	ip addr del 10.71.99.2/24 dev "$NET_A"
	ip link del two
}

# The kernel's own link-local address is usable a second or two after the link is up.
all_usable() { ! ip -6 addr show dev "$NET_A" tentative | grep -q .; }

ends_up self
eventually 10 all_usable
relay 200 "$VERBS_DIR/oob" "$IP4_B"
relay 300 "$VERBS_DIR/stranger" "$IP4_B"
relay 100 "$VERBS_DIR/ports" "$IP4_B"
try port_in_use_at_device_creation 60 port_in_use_at_device_creation
try two_devices_share_the_port 60 two_devices_share_the_port
try nothing_left 30 nothing_left 10 qp cq mr pd

# The link type without rdma_cm. On a path that delays, a Write is complete when it has arrived.
ends_down
TYPE=riwarp_ib
ends_up self
eventually 10 all_usable
export DEVICE=$DEV_A
SCRIPT=$SCRIPT/$TYPE relay 200 "$VERBS_DIR/oob" "$IP4_B"
tc qdisc add dev lo root netem delay 50ms
SCRIPT=$SCRIPT/$TYPE relay 100 "$VERBS_DIR/placed" "$IP4_B"
tc qdisc del dev lo root
try "$TYPE/nothing_left" 30 nothing_left 10 qp cq mr pd
finish
