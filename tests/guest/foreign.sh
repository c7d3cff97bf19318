# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# A listener on the wildcard address in another network namespace than the device's. Sourced.

# The device is DEV_B at IP4_B in the initial namespace. The foreign listener opens no socket there,
# so programs can bind the port, and a listener of the initial namespace works although it came
# later.
foreign_listener() {
	local other
	netns_add foreign
	ip -n foreign link add d0 type dummy
	ip -n foreign link set d0 up
	ip -n foreign addr add 10.99.0.1/24 dev d0
	in_ns foreign rdma link add foreign0 type "$TYPE" netdev d0
	start foreign "$TMP/foreign" rping -s -P -a 0.0.0.0 -p $PORT
	other=$STARTED
	# rdma_cm listens on one device after another, in their order; the foreign namespace's own
	# device comes last.
	wait_listen $PORT || die "foreign: $(last_line "$TMP/foreign")"
	if ss -Hltn "sport = $PORT" | grep .; then die 'a foreign listener has opened the port'; fi
	python3 -c "import socket; socket.create_server(('0.0.0.0', $PORT))" || die 'a foreign listener holds the port'
	rping_pair 4 3 -V
	kill "$other"
	wait "$other" || true
	in_ns foreign rdma link del foreign0
	netns_del foreign
}
