#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# This module in guest 1 and an older one, /mnt/share/0.ko, in guest 2: each serves the other, with
# rdma_cm and without, with and without extensions. Nothing but what both know is sent: the FPDUs
# fit into segments, which guest 1 counts. A message without a receive waits as long as the older
# one keeps its connection. Run by tests/old-peer.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

ADDR=(- 10.77.0.1 10.77.0.2)
NS_A=- NS_B=- DEV=riw0
if [ "$GUEST" = 1 ]; then
	load_modules "$MODULE"
else
	load_modules
	insmod /mnt/share/0.ko
fi
link_add - "$DEV" "$TYPE" eth0
ip link set eth0 mtu 1500

# sum: prints how many FPDUs this end has sent and received.
sum() { echo $(($(counter "$DEV" rx_fpdus) + $(counter "$DEV" tx_fpdus))); }

at_least() { [ "$2" -ge "$1" ] || die "$2 FPDUs, not $1"; }

# meet SERVER LEAST PROGRAM OPTIONS -- OPTIONS of the client: guest SERVER serves, the other one calls
# and reports; guest 1 checks that it took at least so many FPDUs.
meet() {
	local server=$1 least=$2 program=$3 before port options=()
	local name="$3 by_$1 extensions_$EXT"
	shift 3
	while [ "$1" != -- ]; do options+=("$1"); shift; done
	shift
	PORT=$((PORT + 1))
	# `try` moves on to other ports.
	port=$PORT
	before=$(sum)
	if [ "$GUEST" = "$server" ]; then
		[ "$program" != rping ] || options+=(-s)
		start - "$TMP/server" within 90 "$program" -p "$PORT" "${options[@]}"
		wait_listen "$PORT"
		: >"/mnt/out/listening.$PORT"
		wait "$STARTED" || not_ok "server of $name" "$(last_line "$TMP/server")"
	else
		eventually 60 test -e "/mnt/out/listening.$PORT" || die "no server at port $PORT"
		try "${name// /_}" 90 within 80 "$program" -p "$PORT" "${options[@]}" "$@"
	fi
	: >"/mnt/out/ended.$port.$GUEST"
	eventually 60 test -e "/mnt/out/ended.$port.$((3 - GUEST))"
	if [ "$GUEST" = 1 ]; then
		try "fpdus_of_${name// /_}" 10 at_least "$least" $(($(sum) - before))
	fi
	PORT=$port
}

# late SECONDS OUTCOME: a message of the older end finds no receive at this one, which posts one so
# many seconds later. The older one closes its half at once, and the connection some time after.
late() {
	local name=late_$1 port
	PORT=$((PORT + 1))
	port=$PORT
	if [ "$GUEST" = 1 ]; then
		start - "$TMP/late" within 90 "$VERBS_DIR/late" "${ADDR[1]}" "$PORT" "$1"
		wait_listen "$PORT"
		: >"/mnt/out/listening.$PORT"
		try "$name" 100 late_ends "$2"
	else
		eventually 60 test -e "/mnt/out/listening.$PORT" || die "no server at port $PORT"
		within 90 "$VERBS_DIR/late" "${ADDR[1]}" "$PORT" 0 client || true
	fi
	: >"/mnt/out/ended.$port.$GUEST"
	eventually 100 test -e "/mnt/out/ended.$port.$((3 - GUEST))"
	PORT=$port
}
late_ends() {
	eventually 90 gone "$STARTED" || die 'it does not end'
	grep -qx "$1" "$TMP/late" || die "$(last_line "$TMP/late")"
}

[ "$GUEST" = 2 ] || setting - "$DEV" receive_wait 60000
late 3 success
late 40 success
for EXT in 0 1; do
	setting - "$DEV" extensions $EXT
	for server in 1 2; do
		to=${ADDR[server]}
		# 20 Reads and 20 Writes, of 45 segments each.
		meet $server 1600 rping -C 20 -S 65000 -V -a "$to" -- -c
		for way in write read send; do
			# 10 messages of 725 segments.
			meet $server 7250 ib_${way}_bw -F -x 0 -d "$DEV" -s 1048576 -n 10 -t 4 -- "$to"
		done
	done
done
finish
