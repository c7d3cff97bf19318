#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# RDMA devices that each belong to one network namespace (`rdma system set netns exclusive`).
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=foreign.sh
. "$(dirname "$0")/foreign.sh"

device_lives_in_its_namespace() {
	ends_up netns
	if rdma link show | grep .; then die 'a device is seen in the initial namespace'; fi
	in_ns "$NS_A" rdma link show | grep -q "$DEV_A" || die 'not in its own namespace'
	if in_ns "$NS_A" rdma link show | grep "$DEV_B"; then die "the other namespace's is seen"; fi
	in_ns "$NS_A" ibv_devices | grep -q "$DEV_A" || die 'not found by libibverbs'
	rping_pair 4 3 -V
	PORT=$((PORT + 1))
	rping_pair 6 3 -V
	PORT=$((PORT + 1))
	perftest_pair ib_write_bw -s 4096 -n 100
	ends_down
}

namespace_exits() {
	local i
	for i in {1..5}; do
		netns_add gone
		ip -n gone link add d0 type dummy
		ip -n gone link set d0 up
		in_ns gone rdma link add n0 type "$TYPE" netdev d0
		netns_del gone
	done
	# Unloading waits for objects that are still being destroyed.
	rmmod "$MODULE"
	modprobe "$MODULE"
}

# A device works in the initial namespace, too.
initial_namespace() {
	ends_up self
	rping_pair 4 3 -V
	ends_down
}

foreign_listener_opens_nothing() {
	ends_up self
	foreign_listener
	ends_down
}

# A device that moves between the namespaces of RDMA devices is announced to rdma_cm anew, by who
# moves it. That opens the listeners of its interface's namespace, and not those of the mover; a
# program that has the TCP port of one of them hides the device from none. (rping's server, which had
# the device open, cannot use it any more.)
device_moves_and_comes_back() {
	local server other
	netns_add elsewhere
	netns_add beyond
	ip link add d0 type dummy
	NETDEVS_MADE+=(d0)
	ip link set d0 up
	address_add - d0 10.90.5.1/24
	link_add - moves0 "$TYPE" d0
	start - "$TMP/server" rping -s -P -p "$PORT"
	server=$STARTED
	wait_on_device || die "no listener: $(last_line "$TMP/server")"
	served
	rdma dev set moves0 netns elsewhere
	ip netns attach initial $$
	in_ns elsewhere rdma dev set moves0 netns initial
	ip netns del initial
	wait_on_device || die 'the listener is not on the device that was moved from another namespace'
	# Now the kernel brings it back, when that namespace ends.
	hold_port $((PORT + 1))
	ip -n beyond link add d1 type dummy
	ip -n beyond link set d1 up
	in_ns beyond rdma link add beyond0 type "$TYPE" netdev d1
	start beyond "$TMP/other" rping -s -P -p $((PORT + 1))
	other=$STARTED
	# Until it is in that namespace, the program above would be taken for it.
	eventually 20 listens_beyond || die "no listener in another namespace: $(last_line "$TMP/other")"
	rdma dev set moves0 netns elsewhere
	netns_del elsewhere
	eventually 20 link_exists - moves0 || die 'the device has not come back'
	wait_on_device || die 'the listener is not on the device that the kernel has moved'
	dmesg | grep -q "moves0: TCP port $((PORT + 1)) cannot be bound" || die 'the port was not taken'
	kill "$server" "$other"
	link_del - moves0
	ip link del d0
	netns_del beyond
}
listens_beyond() { in_ns beyond ss -Htln "sport = :$((PORT + 1))" | grep -q .; }
wait_on_device() { eventually 20 listens_on_d0; }
listens_on_d0() { ss -Htln "sport = :$PORT" | grep -q '%d0:'; }
served() { rping -c -a 10.90.5.1 -p "$PORT" -C 2 -V >"$TMP/rping" 2>&1 || die "rping: $(last_line "$TMP/rping")"; }

load_modules "$MODULE" || exit 1
modprobe -a dummy veth
rdma system set netns exclusive
[ "$TYPE" = siw ] || try device_lives_in_its_namespace 60 device_lives_in_its_namespace
[ "$TYPE" = siw ] || try namespace_exits 60 namespace_exits
try initial_namespace 30 initial_namespace
[ "$TYPE" = siw ] || try device_moves_and_comes_back 90 device_moves_and_comes_back
[ "$TYPE" = siw ] || try foreign_listener 60 foreign_listener_opens_nothing
finish
