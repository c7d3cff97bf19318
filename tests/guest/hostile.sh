#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# A peer on a plain TCP socket against the device, over a veth pair with an MTU of 1500, or over TAP
# devices (hostile_shapes.sh).
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=starve.sh
. "$(dirname "$0")/starve.sh"
# shellcheck source=raw_peer.sh
. "$(dirname "$0")/raw_peer.sh"

load_modules "$MODULE"
ENDS_COUNT=1
# siw exists in the initial namespace only.
if [ "$TYPE" = siw ]; then veth_ends ria1 - 1500; else veth_ends ria1 rib1 1500; fi
DEV_B=${TYPE}b
link_add "$NS_B" "$DEV_B" "$TYPE" "$NET_B"

# Changes offloads of both ends all the time. With TSO, messages arrive as the peer sends them;
# without it, as segments that GRO merges.
offloads_change() {
	local ends=("$NS_A $NET_A" "$NS_B $NET_B") ns net
	while :; do
		read -r ns net <<<"${ends[RANDOM % 2]}"
		in_ns "$ns" ethtool -K "$net" tx "$(on_or_off 4)" tso "$(on_or_off 2)" gso "$(on_or_off 3)" \
			gro "$(on_or_off 4)" rx-gro-list "$(on_or_off 2)" || true
		nap 3
	done >/dev/null 2>&1
}
# on_or_off N: is `off` in one of N times.
on_or_off() { if [ $((RANDOM % $1)) = 0 ]; then echo off; else echo on; fi; }
if [ "${LINK:-}" = tap ]; then
	offloads_change &
	CHANGER=$!
	export SEGMENTS_ARE_CUT=1
fi

raw_peer
# With fault injection, fails the next allocation below the function of the module that gives a
# queue pair its stream. It fails twice, because the kernel retries large allocations in a second
# way. Allocations that TCP makes for the module are excluded.
if can_starve && [ "$TYPE" = riwarp ]; then
	read -r first last < <(addresses_of '^_R.*2qp6stream.*2Qp6attach$') || die 'the addresses of Qp::attach are unknown'
	cat >"$TMP/starve" <<END
#!/bin/bash
. "$GUEST_DIR/starve.sh"
feed
[ "\$1" = 1 ] || exit 0
aim failslab $first $last
starve failslab 100 2
END
	chmod +x "$TMP/starve"
	export STARVABLE=1
fi
# shellcheck disable=SC2086
RELAY_NAME=all relay "${LIMIT:-800}" ip netns exec "$NS_A" "$VERBS_DIR/hostile" "$IP4_B" "$IP4_A" 7900 \
	${HOSTILE_CASES:-}

# TCP lets little wait that is not sent, so it often takes no more in the middle of a message.
if [ -z "${HOSTILE_CASES:-}" ]; then
	in_ns "$NS_B" sysctl -qw net.ipv4.tcp_notsent_lowat=16384
	RELAY_NAME=lowat relay 60 ip netns exec "$NS_A" "$VERBS_DIR/hostile" "$IP4_B" "$IP4_A" 7900 \
		fault_in_the_middle_of_a_response fault_in_the_middle_of_a_send
	in_ns "$NS_B" sysctl -qw net.ipv4.tcp_notsent_lowat=4294967295
fi

# The same device again, with a library that has no messages of RFC 7306.
if [ -z "${HOSTILE_CASES:-}" ] && [ "$TYPE" = riwarp ]; then
	link_del "$NS_B" "$DEV_B"
	link_add "$NS_B" "$DEV_B" riwarp_siw "$NET_B"
	RELAY_NAME=unknown relay 60 ip netns exec "$NS_A" "$VERBS_DIR/hostile" "$IP4_B" "$IP4_A" 7900 unknown
fi
if [ "${LINK:-}" = tap ]; then
	kill "$CHANGER"
	ends_down
	taps_did
	try shapes 10 shapes_arrived
fi
finish
