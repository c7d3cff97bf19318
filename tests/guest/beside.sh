#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# riwarp beside rdma_rxe, the kernel's driver with the same driver id: neither takes the other's
# devices for its own. Unloading rdma_rxe removes all devices with that id, riwarp's too.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
TYPE=riwarp

# Repeats the interface events that both drivers receive.
shake() {
	ip_ns "$NS_B" link set "$NET_B" mtu 1400
	ip_ns "$NS_B" addr add 10.99.1.1/24 dev "$NET_B"
	ip_ns "$NS_B" link set "$NET_B" down
	ip_ns "$NS_B" link set "$NET_B" up
	ip_ns "$NS_B" addr del 10.99.1.1/24 dev "$NET_B"
	ip_ns "$NS_B" link set "$NET_B" mtu 1500
	eventually 10 link_state_is "$NS_B" "$DEV_B" ACTIVE
	eventually 10 in_ns "$NS_A" ping -c 1 -W 1 "$IP4_B"
}

kind_is() { [ "$(in_ns "$1" ibv_devinfo -d "$2" | awk '/transport:/ { print $2 }')" = "$3" ]; }

riwarp_and_other_driver_share_an_interface() {
	modprobe rdma_rxe
	in_ns "$NS_B" rdma link add other type rxe netdev "$NET_B"
	kind_is "$NS_B" "$DEV_B" iWARP
	kind_is "$NS_B" other InfiniBand
	rping_pair 4 5 -V
	shake
	neighbour "$NS_A" "$NET_A" "$NS_B" "$NET_B" "$IP4_B" "$IP6_B"
	neighbour "$NS_B" "$NET_B" "$NS_A" "$NET_A" "$IP4_A" "$IP6_A"
	rping_pair 4 5 -V
	in_ns "$NS_B" rdma link del other
	kind_is "$NS_B" "$DEV_B" iWARP
	rping_pair 4 5 -V
}

# Both drivers reject a second device of their own on an interface, but accept one beside the other
# driver.
second_device() {
	in_ns "$NS_B" rdma link add other type rxe netdev "$NET_B"
	! in_ns "$NS_B" rdma link add second type "$TYPE" netdev "$NET_B" || die "a second riwarp device was made"
	! in_ns "$NS_B" rdma link add second type rxe netdev "$NET_B" || die "a second rxe device was made"
	in_ns "$NS_B" rdma link del other
}

client_is_connected() {
	in_ns "$NS_A" rdma resource show qp link "$DEV_A" | grep -q 'state RTS'
}

# Unloads rdma_rxe while processes use a riwarp device.
unload_of_other_driver_leaves_devices() {
	start "$NS_B" "$TMP/watch" ibv_asyncwatch -d "$DEV_B"
	start "$NS_B" "$TMP/server" rping -s -a "$IP4_B" -p "$PORT"
	wait_listen "$PORT"
	start "$NS_A" "$TMP/client" rping -c -a "$IP4_B" -p "$PORT" -C 1000000
	eventually 20 client_is_connected || die 'the client is not connected'
	rmmod rdma_rxe
	link_is_gone "$NS_B" "$DEV_B" || die "$DEV_B is still there"
	link_is_gone "$NS_A" "$DEV_A" || die "$DEV_A is still there"
}

devices_can_be_created_again() {
	LINKS_MADE=()
	link_add "$NS_A" "$DEV_A" "$TYPE" "$NET_A"
	link_add "$NS_B" "$DEV_B" "$TYPE" "$NET_B"
	rping_pair 4 5 -V
	modprobe rdma_rxe
	rping_pair 4 5 -V
	in_ns "$NS_A" rdma link del "$DEV_A"
	in_ns "$NS_B" rdma link del "$DEV_B"
	rmmod rdma_rxe
	rmmod riwarp
}

ends_up "${TOPOLOGY:-netns}" "${MTU:-1500}"
try riwarp_and_other_driver_share_an_interface 90 riwarp_and_other_driver_share_an_interface
try second_device 30 second_device
try unload_of_other_driver_leaves_devices 60 unload_of_other_driver_leaves_devices
try devices_can_be_created_again 90 devices_can_be_created_again
finish
