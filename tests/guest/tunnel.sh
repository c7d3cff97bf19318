#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What may lie between two devices: a router with a shorter link behind it; and protection, which
# iWARP itself has not: WireGuard, or IPsec. With these the link below carries nothing in the clear.
# In all cases data arrive whole.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# lower NAME COMMAND...: runs a command while all packets of the link between the ends are captured,
# to $TMP/NAME.
lower() {
	local file=$TMP/$1 pid
	shift
	start "$NS_A" "$TMP/tcpdump" tcpdump -i "$LOWER_A" -n -s 96 -U -w "$file" ip
	pid=$STARTED
	eventually 10 grep -q 'listening on' "$TMP/tcpdump" || die "tcpdump: $(cat "$TMP/tcpdump")"
	"$@"
	# The last packets of a connection follow, and tcpdump reads the kernel's buffer late.
	eventually 20 grows_no_more "$file" || die 'the capture does not end'
	kill "$pid"
	wait "$pid" || true
}
grows_no_more() {
	local size
	size=$(stat -c %s "$1")
	nap 1.5
	[ "$(stat -c %s "$1")" = "$size" ]
}
# packets NAME FILTER: how many packets of a capture match a filter of tcpdump.
packets() { tcpdump -n -r "$TMP/$1" "$2" 2>/dev/null | wc -l; }

# only NAME FILTER: fails unless the capture has at least 20 packets, all of which match.
only() {
	local all matching
	all=$(packets "$1" ip) matching=$(packets "$1" "$2")
	echo "$matching of $all packets match $2"
	[ "$all" -ge 20 ] && [ "$matching" = "$all" ]
}

transfers() {
	rping_pair 4 5 -V -S 20000
	PORT=$((PORT + 1))
	client_server
	PORT=$((PORT + 1))
	# Without rdma_cm: the verified exchange of the library's example.
	pair 30 ibv_rc_pingpong -c -p "$PORT" -d "$DEV_B" -g 0 -n 100 -s 30000 -- \
		ibv_rc_pingpong -c -p "$PORT" -d "$DEV_A" -g 0 -n 100 -s 30000 "$IP4_B"
}

# --- a router -------------------------------------------------------------------------------------

# routed_end NETNS LETTER NUMBER: joins an end to the router, and makes its device.
routed_end() {
	local mac=02:72:00:00:00:0$3
	ip link add "r$2" netns "$1" address "$mac" type veth peer name "to$2" netns router
	ip_ns router -batch - <<-END
		link set to$2 up
		addr add 10.8.$3.254/24 dev to$2
		neigh replace 10.8.$3.1 lladdr $mac dev to$2 nud permanent
	END
	ip_ns "$1" -batch - <<-END
		link set r$2 up
		addr add 10.8.$3.1/24 dev r$2
		route add 10.8.0.0/16 via 10.8.$3.254
		neigh replace 10.8.$3.254 lladdr $(in_ns router cat "/sys/class/net/to$2/address") dev r$2 nud permanent
	END
	link_add "$1" "${TYPE}r$2" "$TYPE" "r$2"
}

# Only the router knows that the link to end B is short: it refuses longer packets, by ICMP.
router_up() {
	netns_add router
	in_ns router sysctl -q -w net.ipv4.ip_forward=1
	routed_end "$NS_A" a 1
	routed_end "$NS_B" b 2
	ip_ns router link set tob mtu 1280
	IP4_A=10.8.1.1 IP4_B=10.8.2.1 DEV_A=${TYPE}ra DEV_B=${TYPE}rb
}

shorter_link_behind_a_router() {
	transfers
	ip_ns "$NS_A" route get "$IP4_B" | tee "$TMP/route"
	grep -q 'mtu 1280' "$TMP/route" || die 'the router has refused nothing'
}

# --- WireGuard ------------------------------------------------------------------------------------

# wg_end NETNS OWN_KEY PEER_KEY ADDRESS LOWER_ADDRESS_OF_PEER
wg_end() {
	ip_ns "$1" link add wg0 type wireguard
	in_ns "$1" wg set wg0 listen-port 51820 private-key "$TMP/$2" \
		peer "$(wg pubkey <"$TMP/$3")" endpoint "$5:51820" allowed-ips 10.9.0.0/24
	ip_ns "$1" addr add "$4/24" dev wg0
	ip_ns "$1" link set wg0 mtu 1420 up
}

wireguard_up() {
	(umask 077 && wg genkey >"$TMP/key_a" && wg genkey >"$TMP/key_b")
	wg_end "$NS_A" key_a key_b 10.9.0.1 "$LOWER4_B"
	wg_end "$NS_B" key_b key_a 10.9.0.2 "$LOWER4_A"
	NET_A=wg0 NET_B=wg0 IP4_A=10.9.0.1 IP4_B=10.9.0.2
	DEV_A=${TYPE}wa DEV_B=${TYPE}wb
	link_add "$NS_A" "$DEV_A" "$TYPE" wg0
	link_add "$NS_B" "$DEV_B" "$TYPE" wg0
}

wireguard_hides_all() {
	lower wireguard transfers
	only wireguard 'udp and port 51820'
}

# The rule of docs/admin.md: the addresses of the tunnel are reachable through the tunnel only.
tunnel_address_is_unreachable_from_outside() {
	local rule='inet filter input iifname != { wg0, lo } ip daddr 10.9.0.2 drop'
	ip_ns "$NS_A" route add 10.9.0.2/32 via "$LOWER4_B" dev "$LOWER_A"
	start "$NS_B" "$TMP/server" within 60 rping -s -a 10.9.0.2 -p "$PORT" -C 1 -P
	wait_listen "$PORT"
	# Without the rule a plain connection by the link below is accepted.
	in_ns "$NS_A" timeout 5 bash -c ": >/dev/tcp/10.9.0.2/$PORT" || die 'not reachable without the rule'
	in_ns "$NS_B" nft add table inet filter
	in_ns "$NS_B" nft add chain inet filter input '{ type filter hook input priority 0; }'
	in_ns "$NS_B" nft add rule "$rule"
	! in_ns "$NS_A" timeout 3 bash -c ": >/dev/tcp/10.9.0.2/$PORT" || die 'reachable in spite of the rule'
	ip_ns "$NS_A" route del 10.9.0.2/32
	kill "$STARTED"
	PORT=$((PORT + 1))
	rping_pair 4 2 -V -S 2000
}

# --- IPsec ----------------------------------------------------------------------------------------

# state NETNS FROM TO SPI: one direction, with a key that both ends have.
state() {
	ip_ns "$1" xfrm state add src "$2" dst "$3" proto esp spi "$4" reqid "$4" mode transport \
		aead 'rfc4106(gcm(aes))' "0x$(printf '%040d' "$4")" 128
}

# states NETNS: both directions.
states() {
	state "$1" "$LOWER4_A" "$LOWER4_B" 1001
	state "$1" "$LOWER4_B" "$LOWER4_A" 1002
}

# policy NETNS DIRECTION FROM TO SPI: TCP between the hosts has to be protected.
policy() {
	ip_ns "$1" xfrm policy add src "$3" dst "$4" proto tcp dir "$2" \
		tmpl src "$3" dst "$4" proto esp reqid "$5" mode transport
}

ipsec_up() {
	local ns way_out way_in
	modprobe -qa esp4 xfrm_user || return 1
	for ns in "$NS_A" "$NS_B"; do
		states "$ns"
		way_out=out way_in=in
		[ "$ns" = "$NS_A" ] || way_out=in way_in=out
		policy "$ns" "$way_out" "$LOWER4_A" "$LOWER4_B" 1001
		policy "$ns" "$way_in" "$LOWER4_B" "$LOWER4_A" 1002
	done
}

ipsec_hides_all() {
	lower ipsec transfers
	only ipsec 'ip proto 50'
}

# Without the states nothing leaves unprotected, and a stream that is open goes on once they are
# back.
nothing_leaves_unprotected() {
	start "$NS_B" "$TMP/server" within 60 rping -s -a "$IP4_B" -p "$PORT" -V -C 1000000
	wait_listen "$PORT"
	start "$NS_A" "$TMP/client" within 60 rping -c -a "$IP4_B" -p "$PORT" -V -C 1000000
	local client=$STARTED
	eventually 20 moves || die "nothing moves: $(last_line "$TMP/client")"
	ip_ns "$NS_A" xfrm state flush
	lower stopped stands_still
	[ "$(packets stopped tcp)" = 0 ] || die 'TCP in the clear'
	states "$NS_A"
	eventually 30 moves || die 'the stream does not go on'
	kill "$client"
}
# moves: the device has sent something within a second.
moves() {
	local before
	before=$(counter "$DEV_A" tx_bytes)
	nap 1
	[ "$(counter "$DEV_A" tx_bytes)" -gt "$before" ]
}
stands_still() { eventually 20 not_moves || die 'it goes on without keys'; }
not_moves() { ! moves; }

ends_up netns
LOWER_A=$NET_A LOWER4_A=$IP4_A LOWER4_B=$IP4_B

if ipsec_up; then
	try ipsec_hides_all 60 ipsec_hides_all
	try nothing_leaves_unprotected 120 nothing_leaves_unprotected
	for ns in "$NS_A" "$NS_B"; do
		ip_ns "$ns" xfrm policy flush
		ip_ns "$ns" xfrm state flush
	done
else
	skip tunnel/ipsec 'this kernel has no ESP'
fi

router_up
try shorter_link_behind_a_router 90 shorter_link_behind_a_router

if modprobe -q wireguard; then
	wireguard_up
	try wireguard_hides_all 60 wireguard_hides_all
	try tunnel_address_is_unreachable_from_outside 60 tunnel_address_is_unreachable_from_outside
else
	skip tunnel/wireguard 'this kernel has no WireGuard'
fi
finish
