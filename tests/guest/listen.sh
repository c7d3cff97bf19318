#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Admission of connections where listeners share a port, and connections while memory is short. The
# peers are plain TCP connections.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=starve.sh
. "$(dirname "$0")/starve.sh"
# shellcheck source=foreign.sh
. "$(dirname "$0")/foreign.sh"

# A listener's limit of connections without MPA Request (src/cm/listen.rs: HALF_OPEN_MIN).
LIMIT=128
ADDRESS=10.90.0.1 HERE=7700

served() { rping -c -a $ADDRESS -p $HERE -C 2 -V >"$TMP/rping" 2>&1 || die "rping: $(last_line "$TMP/rping")"; }

# The port has two listeners on the device: one belongs to a program in another network namespace
# that began to listen before the device existed. At the limit of the other listener, a new
# connection is not rejected but waits in TCP until the oldest one has had its minimum time and is
# reset.
one_is_full() {
	local before begin
	for _ in 1 2 3; do
		before=$(counter dev0 backlog_drops)
		begin=$(date +%s%3N)
		displaced
		# Silent peers are reset after five seconds in any case, on a machine that is so slow.
		[ "$(counter dev0 backlog_drops)" = "$before" ] || { served; return; }
		[ $(($(date +%s%3N) - begin)) -gt 4000 ] || die 'nobody was reset for another one'
	done
	die 'too slow'
}

displaced() {
	python3 - $ADDRESS $HERE $LIMIT <<-'END' || die 'see above'
		import select, socket, sys

		there, limit = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
		peers = [socket.socket() for _ in range(limit + 1)]
		for peer in peers:
		    # Without waiting, so that the first is still there when the last one comes.
		    peer.setblocking(False)
		    peer.connect_ex(there)
		over = []
		while not over:
		    over = select.select(peers, [], [], 20)[0] or sys.exit("nobody had to go")
		if peers[-1] in over:
		    sys.exit("the last one was turned away")
		peers[-1].setblocking(True)
		peers[-1].send(b"MPA ID Req Frame" + bytes((0, 1, 0, 0)))
		if peers[-1].recv(16) != b"MPA ID Rep Frame":
		    sys.exit("the last one was not served")
	END
}

# The consumer is stopped, and more requests wait for it than its backlog. Peers that connect and
# send nothing displace each other, but not these requests. Every 200 ms the driver asks for one
# request beyond the backlog (src/cm/listen.rs: ANSWER_WAIT_MS), which rdma_ucm rejects; all other
# requests are accepted.
requests_stay() {
	local before
	before=$(counter dev0 backlog_drops)
	python3 - $ADDRESS $HERE $LIMIT "$STARTED" <<-'END' || die 'see above'
		import os, select, signal, socket, sys, time

		there, limit, server = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])
		os.kill(server, signal.SIGSTOP)
		begin = time.monotonic()
		try:
		    asking = [socket.create_connection(there, 20) for _ in range(40)]
		    for peer in asking:
		        peer.send(b"MPA ID Req Frame" + bytes((0, 1, 0, 0)))
		    silent = [socket.create_connection(there, 20) for _ in range(limit)]
		    end = time.monotonic() + 20
		    while len(select.select(silent, [], [], 0)[0]) < 10:
		        if time.monotonic() > end:
		            sys.exit("nobody had to go")
		        time.sleep(0.02)
		finally:
		    os.kill(server, signal.SIGCONT)
		away, rejected = 0, 0
		for peer in asking:
		    try:
		        reply = peer.recv(20, socket.MSG_WAITALL)
		        away += reply[:16] != b"MPA ID Rep Frame"
		        rejected += len(reply) == 20 and reply[16] & 0x20 != 0
		    except ConnectionError:
		        away += 1
		passed = time.monotonic() - begin
		print(f"{rejected} of {len(asking)} rejected in {passed:.1f} s")
		if away:
		    sys.exit(f"{away} requests of {len(asking)} were turned away")
		if rejected > passed / 0.2:
		    sys.exit(f"{rejected} of {len(asking)} requests were rejected in {passed:.1f} s")
	END
	[ "$(counter dev0 backlog_drops)" -gt "$before" ] || die 'nobody was reset for another one'
	served
}

foreign_listener_opens_nothing() {
	# shellcheck disable=SC2034
	NS_A=- NS_B=- DEV_B=dev0 IP4_B=$ADDRESS
	foreign_listener
}

# A program listens on all addresses at a port that is open to the privileged only. Somebody without
# the right to such ports makes a device, through which rdma_cm connects nevertheless.
privileged_port() {
	local server
	start - "$TMP/privileged" rping -s -P -p 600
	server=$STARTED
	eventually 10 listeners 3 || die 'no listener'
	ip link add d2 type dummy
	ip link set d2 up
	ip addr add 10.90.2.1/24 dev d2
	setpriv --bounding-set -net_bind_service --inh-caps -net_bind_service \
		rdma link add dev2 type "$TYPE" netdev d2
	rping -c -a 10.90.2.1 -p 600 -C 2 -V >"$TMP/rping" 2>&1 || die "rping: $(last_line "$TMP/rping")"
	rdma link del dev2
	ip link del d2
	kill "$server"
}

NEXT=/sys/module/riwarp/parameters/next_device
# dummy NAME ADDRESS
dummy() {
	ip link add "$1" type dummy
	ip link set "$1" up
	ip addr add "$2/24" dev "$1"
}
NOBODY=(setpriv --reuid=65534 --regid=65534 --clear-groups)
# bound NETDEV PORT: whether a socket of this interface listens on the TCP port.
bound() { ss -Htln "sport = :$2" | grep -q "%$1:$2 "; }

# Two ports of rdma_cm lead to one of TCP after port_offset has changed. The second listener is
# refused: rdma_cm keeps users apart by its own ports, and the other is another user's.
ports_of_two_programs() {
	local rc=0
	setting - dev0 port_offset 1000
	"${NOBODY[@]}" within 20 rping -s -P -p $((HERE - 1000)) >"$TMP/second" 2>&1 || rc=$?
	setting - dev0 port_offset 0
	[ "$rc" != 0 ] && [ "$rc" != 124 ] || die "the second listener: status $rc"
	grep -q 'Address already in use' "$TMP/second" || die "the second listener: $(last_line "$TMP/second")"
	served
}

# A listener that is older than the device has an unprivileged port of rdma_cm, which leads to a
# privileged one of TCP: it does not get that with the rights of who makes the device.
privileged_port_by_offset() {
	local server
	start - "$TMP/nobody" "${NOBODY[@]}" rping -s -P -p 61200
	server=$STARTED
	eventually 10 listeners 3 || die "no listener: $(last_line "$TMP/nobody")"
	dummy d3 10.90.3.1
	echo 'd3 port_offset=4446' >$NEXT
	rdma link add dev3 type "$TYPE" netdev d3
	if ss -Htln 'sport = :111' | grep .; then die 'it has a privileged port'; fi
	dmesg | grep -q 'dev3: TCP port 111 cannot be bound' || die 'the log does not say so'
	rdma link del dev3
	ip link del d3
	kill "$server"
	wait "$server" || true
}

# riwarp-link makes the settings before the device. Else listeners that exist would not get the
# ports, and a device that shall hold no port would take it. Two run at a time, and each device has
# its own settings; the next ones have the defaults.
settings_precede_the_device() {
	local server both link=/riwarp/utils/riwarp-link dir=/sys/class/infiniband
	export RIWARP_CONF=$TMP/riwarp.conf
	cat >"$RIWARP_CONF" <<-END
		ord_limit = 32
		oob_port = 0
		[d3]
		name = dev3
		port_offset = 1000
		ird_limit = 64
		[d4]
		name = dev4
		port_offset = 2000
		crc = 0
	END
	start - "$TMP/wildcard" rping -s -P -p 7710
	server=$STARTED
	eventually 10 listeners 3 || die 'no listener'
	setting - dev0 oob_port 0
	hold_port 24791
	dummy d3 10.90.3.1
	dummy d4 10.90.4.1
	$link add d3 &
	both=$!
	$link add d4
	wait "$both"
	if dmesg | grep -E 'dev[34]: TCP port .* cannot be held'; then die 'a port that nobody wants'; fi
	bound d3 8710 && bound d4 9710 || die "no listener with the offset: $(ss -Htln)"
	if bound d3 7710 || bound d4 7710; then die "listeners without the offset: $(ss -Htln)"; fi
	[ "$(cat $dir/dev3/{port_offset,ird_limit,ord_limit,crc,oob_port} | xargs)" = '1000 64 32 1 0' ] ||
		die "dev3: $(cat $dir/dev3/{port_offset,ird_limit,ord_limit,crc,oob_port} | xargs)"
	[ "$(cat $dir/dev4/{port_offset,ird_limit,ord_limit,crc,oob_port} | xargs)" = '2000 128 32 0 0' ] ||
		die "dev4: $(cat $dir/dev4/{port_offset,ird_limit,ord_limit,crc,oob_port} | xargs)"
	# What librdmacm goes by is what ib_core read when it registered the device.
	[ "$(python3 -c "$DEPTHS" dev3)" = '64 32' ] || die "depths of dev3: $(python3 -c "$DEPTHS" dev3)"
	rping -c -a 10.90.3.1 -p 7710 -C 2 -V >"$TMP/rping" 2>&1 || die "rping: $(last_line "$TMP/rping")"
	$link remove d3
	$link remove d4
	# A port that a program has, which the file names.
	sed -i 's/^oob_port = 0/oob_port = 24791/' "$RIWARP_CONF"
	if $link add d3 >"$TMP/said" 2>&1; then die 'a device without its port'; fi
	grep -q 'oob_port of d3 cannot be 24791, a program has this TCP port' "$TMP/said" || die "$(cat "$TMP/said")"
	link_is_gone - dev3 || die 'a device was left'
	# Nothing is left for a device that is made otherwise.
	rdma link add dev3 type "$TYPE" netdev d3
	[ "$(cat $dir/dev3/{port_offset,ird_limit,ord_limit} | xargs)" = '0 128 128' ] || die 'settings were left'
	rdma link del dev3
	kill "$STARTED" "$server"
	wait "$STARTED" "$server" || true
	setting - dev0 oob_port 24791
	wrong_next_devices
	ip link del d3
	ip link del d4
}
# What ibv_query_device() says of the depths.
DEPTHS='
import sys
from pyverbs.device import Context
attr = Context(name=sys.argv[1]).query_device()
print(attr.max_qp_rd_atom, attr.max_qp_init_rd_atom)
'
# What is wrong is refused as a whole, and what was said last counts.
wrong_next_devices() {
	local wrong
	echo 'd3 port_offset=7' >$NEXT
	for wrong in 'd3 crc=2' 'd3 port_offset=8 crc' 'd3 nosuch=1' 'd3 ird_limit=0' 'd3 =' 'nosuch0 crc=0' ''; do
		if echo "$wrong" 2>/dev/null >$NEXT; then die "taken: '$wrong'"; fi
	done
	rdma link add dev3 type "$TYPE" netdev d3
	[ "$(cat /sys/class/infiniband/dev3/port_offset)" = 7 ] || die 'not what was written first'
	rdma link del dev3
	echo 'd3 port_offset=9' >$NEXT
	echo d3 >$NEXT
	rdma link add dev3 type "$TYPE" netdev d3
	[ "$(cat /sys/class/infiniband/dev3/port_offset)" = 0 ] || die 'not forgotten'
	rdma link del dev3
	if "${NOBODY[@]}" sh -c "echo d3 >$NEXT" 2>/dev/null; then die 'anybody may write'; fi
}

# aim_at KIND PATTERN: aims at the function of the module whose symbol matches.
aim_at() {
	local first last
	feed
	read -r first last < <(addresses_of "$2") || die "the addresses of $2 are unknown"
	aim "$1" "$first" "$last"
}

# The allocation of a connection's socket fails. No other connection comes that would wake the
# listener, which must retry by itself.
no_socket() {
	local peer
	aim_at failslab '^_R.*12ListenSocket10accept_all$'
	starve failslab 100 3
	exec {peer}<>"/dev/tcp/$ADDRESS/$HERE"
	eventually 10 all_failed failslab || die "$(cat $FAILING/failslab/times) allocations were not tried"
	feed
	printf 'MPA ID Req Frame\x00\x01\x00\x00' >&"$peer"
	[ "$(timeout 20 head -c 16 <&"$peer")" = 'MPA ID Rep Frame' ] || die 'not served'
	exec {peer}>&-
}

# Allocations for the data to send fail for a while.
no_pages() {
	aim_at fail_page_alloc '^_R.*TxBatch.*12reserve_more$'
	starve fail_page_alloc 100 200
	served
	all_failed fail_page_alloc || die "$(cat $FAILING/fail_page_alloc/times) allocations were not tried"
	feed
}

# TCP has no memory for what is to be sent, and nothing is under way of which an acknowledgement
# would come. The end whose turn it is tries again once in a millisecond at most.
no_buffers() {
	local first last client stalls begin
	read -r first last < <(kernel_addresses_of tcp_stream_alloc_skb)
	aim failslab "$first" "$last"
	has_sent 0
	start - "$TMP/client" rping -c -a $ADDRESS -p $HERE -C 1000000
	client=$STARTED
	eventually 20 has_sent 100 || die "$(<"$TMP/client")"
	begin=$(date +%s%3N) stalls=$(counter dev0 tx_stalls)
	starve failslab 100 1000000000
	nap 1
	feed
	stalls=$(($(counter dev0 tx_stalls) - stalls))
	begin=$(($(date +%s%3N) - begin))
	[ "$stalls" -gt 0 ] || die 'nothing failed'
	[ "$stalls" -le "$begin" ] || die "$stalls times in $begin ms"
	has_sent 0
	eventually 20 has_sent 100 || die 'nothing is sent any more'
	kill "$client"
}

# has_sent COUNT: whether so many batches were sent since a call with 0.
has_sent() {
	[ "$1" != 0 ] || SENT=$(counter dev0 tx_batches)
	[ "$(counter dev0 tx_batches)" -ge $((${SENT:-0} + $1)) ]
}

listeners() { [ "$(rdma resource show cm_id | grep -c LISTEN)" = "$1" ]; }
all_failed() { [ "$(cat "$FAILING/$1/times")" = 0 ]; }

load_modules "$MODULE"
modprobe dummy
ENDS_COUNT=1
ip link add d0 type dummy
NETDEVS_MADE+=(d0)
ip link set d0 up
address_add - d0 $ADDRESS/24
link_add - dev1 "$TYPE" lo
netns_add elsewhere
start elsewhere "$TMP/other" rping -s -P -p $HERE
OTHER=$STARTED
eventually 10 listeners 1 || die 'no listener in the other namespace'
link_add - dev0 "$TYPE" d0
link_del - dev1
eventually 10 listeners 1 || die 'the listener of the other namespace is not on the new device'
start - "$TMP/server" rping -s -P -p $HERE
eventually 10 listeners 2 || die 'no listener in this namespace'

[ "$TYPE" = siw ] || try one_is_full 90 one_is_full
[ "$TYPE" = siw ] || try requests_stay 90 requests_stay
[ "$TYPE" = siw ] || try privileged_port 60 privileged_port
[ "$TYPE" = siw ] || try ports_of_two_programs 60 ports_of_two_programs
[ "$TYPE" = siw ] || try privileged_port_by_offset 60 privileged_port_by_offset
[ "$TYPE" != riwarp ] || try settings_precede_the_device 90 settings_precede_the_device
! can_starve || try no_socket 60 no_socket
! can_starve || try no_pages 60 no_pages
! can_starve || try no_buffers 90 no_buffers
[ "$TYPE" = siw ] || try foreign_listener 60 foreign_listener_opens_nothing
kill "$STARTED" "$OTHER"
finish
