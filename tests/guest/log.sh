#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What the kernel's log says about devices, streams and connections that fail: one line each, none
# for what ends in order, and a bounded number whatever strangers do.
#
# STRANGERS=N sets how many bad peers the last case has.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=agents.sh
. "$(dirname "$0")/agents.sh"
# shellcheck source=raw_peer.sh
. "$(dirname "$0")/raw_peer.sh"
[ "$TYPE" != siw ] || { skip "$SCRIPT" 'lines of riwarp'; finish; }
STRANGERS=${STRANGERS:-300}

# lines: prints what the module has logged since `mark`. Lines of KUnit in the debug kernel, which
# come before, do not count.
mark() { MARK="log.sh mark $BASHPID.$((MARKS += 1))"; echo "$MARK" >/dev/kmsg; }
MARKS=0
lines() { dmesg | sed "1,/$MARK/d" | sed -n 's/^\[[^]]*\] riwarp: //p'; }
says() { lines | grep -qF -- "$1"; }
# says_only TEXT...: waits for a line with each of the texts, and fails if there are others.
says_only() {
	local text
	for text; do eventually 30 says "$text" || die "no line with '$text': $(lines)"; done
	[ "$(lines | wc -l)" = $# ] || die "not $# lines: $(lines)"
}

# A new load of the module begins with the whole of the limit.
fresh() {
	fresh_ends
	mark
}

device_comes_and_goes() {
	ip link add d0 type dummy
	mark
	rdma link add log0 type "$TYPE" netdev d0
	says_only "log0: device added on d0, link type $TYPE"
	rdma dev set log0 name log1
	mark
	rdma link del log1
	says_only 'log1: device removed'
	rdma link add log2 type "$TYPE" netdev d0
	mark
	ip link del d0
	says_only 'log2: device removed'
}

refused_devices() {
	local kind
	ip link add d0 type dummy
	ip link add d1 type dummy
	rdma link add log0 type "$TYPE" netdev d0
	mark
	! rdma link add log1 type "$TYPE" netdev d0 2>/dev/null || die 'a second device'
	says_only 'log1: no device on d0: it has a device of riwarp already'
	mark
	! rdma link add log0 type "$TYPE" netdev d1 2>/dev/null || die 'a second device of that name'
	says_only 'log0: no device on d1: another device has this name'
	mark
	! rdma link add $'a/b\nc' type "$TYPE" netdev d1 2>/dev/null || die 'a device with a slash'
	says_only 'a/b\x0ac: no device on d1: the name of the device cannot be a file name'
	rdma link del log0
	ip link del d0
	ip link del d1
	for kind in nlmon vcan; do
		if modprobe "$kind" 2>/dev/null; then break; fi
	done
	ip link add unfit0 type "$kind" || skip_case "no $kind in this kernel"
	mark
	! rdma link add log1 type "$TYPE" netdev unfit0 2>/dev/null || die "a device on $kind"
	ip link del unfit0
	says_only 'log1: no device on unfit0: it is no Ethernet, tunnel or loopback interface'
}

orderly_ends() {
	fresh
	join 8192
	ask a send "$C" 100 -
	ask a disconnect "$C"
	await a "disconnected $C"
	await b 'disconnected *'
	PORT=$((PORT + 1))
	rping_pair 4 3
	PORT=$((PORT + 1))
	client_server
	# The line of the next fault is the only one.
	mark_is_first
}

# mark_is_first: causes a line, and fails if any other comes before it.
mark_is_first() {
	stranger_says "$IP4_B" 'GET / HTTP/1.0'
	says_only 'failed to start: the peer sent no MPA frame'
}

# stranger_says ADDRESS WORDS: connects to an rping server and sends something else.
stranger_says() {
	PORT=$((PORT + 1))
	serve 30 rping -s -a "$1" -p "$PORT" -C 1
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	in_ns "$NS_A" timeout 10 bash -c "exec 3<>/dev/tcp/$1/$PORT; echo '$2' >&3; cat <&3" || true
	kill "$SERVER_PID"
	wait "$SERVER_PID" 2>/dev/null || true
}

a_fault() {
	fresh
	join 8192
	ask a write "$C" "$FROM" 0 8 $((AT + 8190)) "$KEY" -
	await a "disconnected $C"
	says_only \
		"$DEV_B: queue pair" \
		"$DEV_A: queue pair"
	says "stream ended because of a fault in the peer's RDMA Write: data outside its region; DDP tagged buffer error: base or bounds violation (0x11101)" ||
		die "$(lines)"
	says "peer $IP4_B:$PORT: stream ended by the peer because of this end's RDMA Write: DDP tagged buffer error: base or bounds violation (0x11101)" ||
		die "$(lines)"
	rdma -dd resource show qp | grep -q 'drv_fault 69889' || die "$(rdma -dd resource show qp)"
}

a_bad_source() {
	fresh
	join 8192
	ask a read "$C" "$FROM" 0 8 $((AT + 8190)) "$KEY" -
	await a "disconnected $C"
	says_only \
		"stream ended because of a fault in the peer's Read Request: source outside its region; RDMAP remote protection error: base or bounds violation (0x10101)" \
		"stream ended by the peer because of this end's Read Request: RDMAP remote protection error: base or bounds violation (0x10101)"
}

a_bad_request() {
	fresh
	join 8192
	ask a badsend "$C"
	await a "disconnected $C"
	says_only \
		"stream ended because of this end's work request: its list names a region that is unknown or lacks a right" \
		"stream ended by the peer because of this end's message: RDMAP local catastrophic error: unspecified (0x100ff)"
}

# One bad frame of a peer gives one line: cases of the hostile peer, each with other connections to
# the same device, of which nothing is to be said.
one_bad_frame() {
	fresh
	raw_peer
	ip netns exec "$NS_A" "$VERBS_DIR/hostile" "$IP4_B" "$IP4_A" 7900 "$1" | grep -q "^ok $1" ||
		die "the case $1 failed"
	says_only "$2"
}

# The stream is idle: one with Reads may end by a Terminate, since the kernel frees the regions of a
# process before its queue pairs.
killed_peer() {
	fresh
	join 8192
	ask a read "$C" "$FROM" 0 8192 "$AT" "$KEY" -
	await a "wc $C send * success"
	pkill -KILL -f "agent $IP4_A"
	says_only "$DEV_B: queue pair"
	says 'stream lost: reset by the peer' || die "$(lines)"
}

# A peer that has gone without a word: nothing acknowledges what is sent.
silent_peer() {
	fresh
	join 8192
	in_ns "$NS_A" sysctl -q net.ipv4.tcp_retries2=1
	ip_ns "$NS_B" addr flush dev "$NET_B"
	in_ns "$NS_B" ip link set "$NET_B" arp off
	ip_ns "$NS_A" route add blackhole "$IP4_B" 2>/dev/null || true
	ask a send "$C" 100 -
	await a "disconnected $C"
	eventually 60 says 'stream lost: ' || die "$(lines)"
	lines | grep -F "$DEV_A: " | grep -qE 'stream lost: the peer (does not answer|cannot be reached)' ||
		die "$(lines)"
	[ "$(lines | grep -cF "$DEV_A: ")" = 1 ] || die "$(lines)"
}

# A peer that connects and says nothing.
mute_peer() {
	fresh
	serve 30 rping -s -a "$IP4_B" -p "$PORT" -C 1
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	in_ns "$NS_A" timeout 60 bash -c "exec 3<>/dev/tcp/$IP4_B/$PORT; cat <&3" || true
	says_only 'failed to start: no MPA Request in time'
	kill "$SERVER_PID"
}

# Both ends of a device's own initiator: a server that is no iWARP.
no_iwarp_server() {
	fresh
	start "$NS_B" "$TMP/server" python3 -c "
import socket
s = socket.create_server(('$IP4_B', $PORT))
c, _ = s.accept()
c.recv(1)
c.sendall(b'HTTP/1.0 400 Bad Request\r\n')
c.recv(1000)
c.settimeout(20)
while c.recv(1000): pass
"
	wait_listen "$PORT"
	! in_ns "$NS_A" within 30 rping -c -a "$IP4_B" -p "$PORT" -C 1 >/dev/null 2>&1 || die 'connected'
	says_only "<-> $IP4_B:$PORT failed to start: the peer sent no MPA frame"
}

flood() {
	local begin=$SECONDS
	fresh
	serve 600 rping -s -P -a "$IP4_B" -p "$PORT"
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	in_ns "$NS_A" python3 -c "
import socket
for i in range($STRANGERS):
    with socket.create_connection(('$IP4_B', $PORT)) as c:
        c.sendall(b'X' * 20)
        try:
            while c.recv(1000): pass
        except ConnectionError:
            pass
"
	kill "$SERVER_PID"
	[ "$(counter "$DEV_B" mpa_errors)" = "$STRANGERS" ] || die "only $(counter "$DEV_B" mpa_errors) were counted"
	# The last lines about suppressed ones may be missing.
	echo "$(lines | wc -l) lines for $STRANGERS peers"
	[ "$(lines | wc -l)" -ge 15 ] || die "not 15 lines: $(lines)"
	[ "$(lines | wc -l)" -le 100 ] || die 'too many'
	if [ $((SECONDS - begin)) -lt 50 ]; then
		[ "$(lines | wc -l)" = 15 ] || die "not 15 lines: $(lines)"
	fi
}

load_modules "$MODULE"
try device_comes_and_goes 120 device_comes_and_goes
try refused_devices 120 refused_devices
try orderly_ends 120 orderly_ends
try a_fault 120 a_fault
try a_bad_source 120 a_bad_source
try a_bad_request 120 a_bad_request
try one_bad_crc 120 one_bad_frame crc_of_zeros "stream ended because of a fault in the peer's message: wrong CRC; MPA error: CRC error (0x12002)"
try no_first_message 120 one_bad_frame rtr_never_comes 'failed to start: no first message of the peer in time'
try killed_peer 120 killed_peer
try silent_peer 120 silent_peer
try mute_peer 120 mute_peer
try no_iwarp_server 120 no_iwarp_server
try flood 900 flood
finish
