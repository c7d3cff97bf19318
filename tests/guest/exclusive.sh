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

load_modules "$MODULE" || exit 1
modprobe -a dummy veth
rdma system set netns exclusive
[ "$TYPE" = siw ] || try device_lives_in_its_namespace 60 device_lives_in_its_namespace
[ "$TYPE" = siw ] || try namespace_exits 60 namespace_exits
try initial_namespace 30 initial_namespace
[ "$TYPE" = siw ] || try foreign_listener 60 foreign_listener_opens_nothing
finish
