#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What /sys/kernel/debug/riwarp says: which peers are connected with which settings, which queue
# pair is stuck and on what, why the last stream ended. And what the trace events say: the life of a
# connection and of a request, faults.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=agents.sh
. "$(dirname "$0")/agents.sh"
[ "$TYPE" != siw ] || { skip "$SCRIPT" 'files of riwarp'; finish; }
mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug
FILES=/sys/kernel/debug/riwarp

# shows FILE DEVICE WORD...: succeeds if a line of the device has all of these words.
shows() {
	local file=$1 lines word
	lines=$(grep "^device=$2 " "$FILES/$1") || return 1
	shift 2
	for word; do lines=$(grep -E -- " $word( |\$)" <<<"$lines") || return 1; done
}

# shows_soon FILE DEVICE WORD...
shows_soon() { eventually 20 shows "$@" || die "not ${*:3}: $(cat "$FILES/$1")"; }

# tracing: makes new ends, and traces all events of riwarp from then on.
TRACING=/sys/kernel/tracing
tracing() {
	mountpoint -q $TRACING || mount -t tracefs none $TRACING 2>/dev/null || skip_case 'no tracefs'
	[ -e $TRACING/events ] || skip_case 'no trace events in this kernel'
	fresh_ends
	echo >$TRACING/trace
	echo 1 >$TRACING/events/riwarp/enable
}

# traced [EVENT]: prints the events as "EVENT key=value...".
traced() { sed -nE "s/^.*: riwarp_(${1:-[a-z_]*}): /\\1 /p" $TRACING/trace; }

# in_order PATTERN...: succeeds if there are events that match, in this order.
in_order() {
	traced | awk 'BEGIN { for (i = 1; i < ARGC; i++) want[i] = ARGV[i]; n = ARGC - 1; ARGC = 1; at = 1 }
		at <= n && $0 ~ want[at] { at++ }
		END { if (at <= n) print "not: " want[at]; exit at <= n }' "$@"
}
in_order_soon() { eventually 20 in_order "$@" || die "$(in_order "$@"; traced)"; }

# cut_off: from here on no packet of end A arrives.
cut_off() {
	ip_ns "$NS_A" neigh replace "$IP4_B" lladdr 02:71:00:00:00:99 dev "$NET_A" nud permanent
}

nothing_without_devices() {
	rmmod "$MODULE"
	[ ! -e "$FILES" ] || die 'files without the module'
	modprobe "$MODULE"
	[ "$(cat "$FILES"/{qps,conns})" = '' ] || die "$(cat "$FILES"/{qps,conns})"
	[ "$(stat -c %a /sys/kernel/debug)" = 700 ] || die 'anyone may read it'
}

connected() {
	local posted=4
	# libsiw does not say how many receives are posted.
	[ "$TYPE" = riwarp ] || posted='\?'
	fresh_ends
	join 4194304 2
	shows_soon qps "$DEV_A" phase=rts via=rdma_cm "peer=$IP4_B:$PORT" ulpdu_max=32782 mpa_rev=2 crc=1 markers=0 ord=2 \
		consumer=process tx_waits=- rx_waits=- reads=0 unacked=0
	shows_soon qps "$DEV_B" phase=rts "local=$IP4_B:$PORT" "peer=$IP4_A:[0-9]*" crc=1 ird=2 "rq_posted=$posted"
	shows_soon conns "$DEV_A" phase=open "peer=$IP4_B:$PORT" tcp=Established 'qp=[0-9]*'
	rdma dev set "$DEV_B" name renamed0
	shows_soon qps renamed0 phase=rts
	ask a disconnect "$C"
	await a "disconnected $C"
	shows_soon qps "$DEV_A" phase=error tx_waits=-
	! grep -q end= "$FILES/qps" || die "an orderly end has a reason: $(cat "$FILES/qps")"
}

with_other_settings() {
	local name
	fresh_ends
	for name in "$NS_A $DEV_A" "$NS_B $DEV_B"; do
		# shellcheck disable=SC2086
		setting $name crc 0
		# shellcheck disable=SC2086
		setting $name mpa_rev 1
	done
	join 4194304 2
	shows_soon qps "$DEV_A" crc=0 mpa_rev=1 ord=2
	shows_soon qps "$DEV_B" crc=0 mpa_rev=1 ird=2
	fresh_ends
	setting "$NS_A" "$DEV_A" ord_limit 1
	setting "$NS_B" "$DEV_B" ord_limit 3
	join 4194304 2
	shows_soon qps "$DEV_A" ord=1
	shows_soon qps "$DEV_B" ord=3
	fresh_ends
	setting "$NS_B" "$DEV_B" ird_limit 1
	join 4194304 2
	shows_soon qps "$DEV_A" ord=1
	shows_soon qps "$DEV_B" ird=1
}

stuck_on_tcp() {
	fresh_ends
	join 4194304 2
	cut_off
	for _ in 1 2 3 4; do ask a write "$C" "$FROM" 0 4194304 "$AT" "$KEY" -; done
	shows_soon qps "$DEV_A" tx_waits=send_space 'sq_p[a-z]*=[1-9][0-9]*' 'unacked=[1-9][0-9]*'
	shows_soon qps "$DEV_A" 'retransmits=[1-9][0-9]*'
	shows_soon qps "$DEV_B" tx_waits=- unacked=0
}

stuck_on_ord() {
	local i
	fresh_ends
	join 4194304 2
	cut_off
	ask a read "$C" "$FROM" 0 8 "$AT" "$KEY" -
	shows_soon qps "$DEV_A" tx_waits=responses reads=1 ord=2
	for i in 1 2; do ask a read "$C" "$FROM" $((8 * i)) 8 "$AT" "$KEY" -; done
	shows_soon qps "$DEV_A" tx_waits=ord reads=2 ord=2
}

stuck_on_a_fence() {
	fresh_ends
	join 4194304 2
	cut_off
	ask a read "$C" "$FROM" 0 8 "$AT" "$KEY" -
	ask a send "$C" 8 f
	shows_soon qps "$DEV_A" tx_waits=fence reads=1
}

# Memory that is not there: a process's pager holds back its pages.
stuck_on_memory() {
	[ "$TYPE" = riwarp ] || skip_case 'paging on demand of librxe'
	local m
	fresh_ends
	join 4194304 2
	ask b mr 8192 $((31 + 64)) 0
	read -r m AT KEY <<<"$ANSWER"
	ask b away "$m"
	ask a write "$C" "$FROM" 0 100 "$AT" "$KEY" -
	shows_soon qps "$DEV_B" rx_waits=memory tx_waits=- 'queued=[1-9][0-9]*'
	ask b back "$m"
	shows_soon qps "$DEV_B" rx_waits=- queued=0
	ask b away "$m"
	ask a read "$C" "$FROM" 0 100 "$AT" "$KEY" -
	shows_soon qps "$DEV_B" tx_waits=memory rx_waits=- inbound_reads=1
	shows_soon qps "$DEV_A" tx_waits=responses
	ask b back "$m"
	shows_soon qps "$DEV_A" tx_waits=- reads=0
}

# A peer whose TCP takes no more: what it has not taken is known at both ends.
stuck_on_the_window() {
	[ "$TYPE" = riwarp ] || skip_case 'paging on demand of librxe'
	local m
	fresh_ends
	join 4194304 2
	ask b mr 4194304 $((31 + 64)) 0
	read -r m AT KEY <<<"$ANSWER"
	ask b away "$m"
	for _ in 1 2 3 4; do ask a write "$C" "$FROM" 0 4194304 "$AT" "$KEY" -; done
	shows_soon qps "$DEV_A" tx_waits=send_space peer_window=0 'unacked=[1-9][0-9]*'
	shows_soon qps "$DEV_B" rx_waits=memory window=0 'queued=[1-9][0-9]*'
	ask b back "$m"
	shows_soon qps "$DEV_A" tx_waits=- unacked=0 sq_pending=0 sq_posted=0
}

after_a_fault() {
	fresh_ends
	join 4194304 2
	ask a write "$C" "$FROM" 0 8 $((AT + 4194300)) "$KEY" -
	await a "disconnected $C"
	shows_soon qps "$DEV_B" phase=error 'end="fault of the peer: data outside its region; DDP tagged buffer error: base or bounds violation \(0x11101\)"'
	shows_soon qps "$DEV_A" phase=error 'end="Terminate of the peer: DDP tagged buffer error: base or bounds violation \(0x11101\)"'
}

starting_up() {
	fresh_ends
	serve 30 rping -s -a "$IP4_B" -p "$PORT" -C 1
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	start "$NS_A" /dev/null bash -c "exec 3<>/dev/tcp/$IP4_B/$PORT; cat <&3"
	shows_soon conns "$DEV_B" phase=waiting "local=$IP4_B:$PORT" "peer=$IP4_A:[0-9]*" tcp=Established 'limit_s=[0-9]'
	kill "$STARTED" "$SERVER_PID"
	eventually 20 empty "$FILES/conns" || die "$(cat "$FILES/conns")"
}

empty() { [ -z "$(cat "$1")" ]; }

trace_a_connection() {
	tracing
	join 8192 2
	ask a disconnect "$C"
	await a "disconnected $C"
	local number end
	for end in "$DEV_A" "$DEV_B"; do
		number=$(traced conn_established | sed -n "s/.* dev=$end conn=\([0-9]*\) .*/\1/p")
		[ -n "$number" ] || die "no stream of $end: $(traced)"
		in_order_soon "conn_phase dev=$end conn=$number .*phase=(connecting|waiting)" \
			"conn_phase dev=$end conn=$number .*phase=(requesting|asked)" \
			"conn_established dev=$end conn=$number qpn=[1-9]" \
			"conn_phase dev=$end conn=$number qpn=[1-9][0-9]* phase=open" \
			"conn_closed dev=$end conn=$number qpn=[1-9][0-9]* reason=\"in order\"" \
			"conn_phase dev=$end conn=$number .*phase=released"
	done
	in_order "conn_established dev=$DEV_A .* local=$IP4_A:[0-9]* peer=$IP4_B:$PORT mpa_rev=2 crc=1 markers=0 ird=[0-9]* ord=2\$" \
		|| die "$(traced conn_established)"
	in_order "conn_established dev=$DEV_B .* local=$IP4_B:$PORT peer=$IP4_A:[0-9]* mpa_rev=2 crc=1 markers=0 ird=2 ord=" \
		|| die "$(traced conn_established)"
	[ -z "$(traced '(fault|terminate|conn_refused)')" ] || die "$(traced)"
	# A phase is named once, however often the connection takes a step in it.
	[ -z "$(traced conn_phase | sort | uniq -d)" ] || die "$(traced conn_phase)"
}

trace_requests() {
	local qp seq
	tracing
	join 65536 2
	qp=$(traced conn_established | sed -n "s/.* dev=$DEV_A .* \(qpn=[0-9]*\) .*/\1/p")
	# What the initiator can do comes first, and belongs to no request.
	in_order_soon "^message_out dev=$DEV_A $qp seq=-1 opcode=FEATURES len=0" \
		"^fpdu_in dev=$DEV_B .*opcode=FEATURES len=26 last=1"
	# The life of a Write of several FPDUs. Its position in the queue is in each line.
	ask a write "$C" "$FROM" 0 50000 "$AT" "$KEY" -
	in_order_soon "^wr_start dev=$DEV_A $qp .*opcode=RDMA_WRITE len=50000"
	seq=$(traced wr_start | sed -n "s/.* \(seq=[0-9]*\) .* opcode=RDMA_WRITE .*/\1/p")
	in_order_soon "^post_send dev=$DEV_A $qp posted=[1-9]" \
		"^wr_start dev=$DEV_A $qp $seq wr_id=0x[0-9a-f]* opcode=RDMA_WRITE len=50000" \
		"^message_out dev=$DEV_A $qp $seq opcode=WRITE len=50000" \
		"^wr_complete dev=$DEV_A $qp $seq wr_id=0x[0-9a-f]* opcode=RDMA_WRITE status=SUCCESS len=50000"
	[ "$(traced message_out | grep -c "dev=$DEV_A $qp $seq ")" = 1 ] || die "$(traced message_out)"
	# Each FPDU has 14 octets of headers, and all of them the payload. One without is the first
	# message of the connection.
	in_order_soon "^fpdu_in dev=$DEV_B .*opcode=WRITE len=[0-9]* last=1"
	traced fpdu_in | sed -n "s/.*dev=$DEV_B .*opcode=WRITE len=\([0-9]*\) last=\([01]\)/\1 \2/p" >"$TMP/writes"
	awk '$1 > 14 { count++; sum += $1 - 14; last += $2 } END { exit !(sum == 50000 && last == 1 && $2 == 1 && count > 1) }' "$TMP/writes" ||
		die "$(traced fpdu_in)"
	# A Read, whose Request belongs to it, and whose Response does not.
	ask a read "$C" "$FROM" 0 3000 "$AT" "$KEY" -
	in_order_soon "^wr_start dev=$DEV_A .*opcode=RDMA_READ len=3000" \
		"^message_out dev=$DEV_A .*seq=[0-9]* opcode=READ_REQUEST len=0" \
		"^fpdu_in dev=$DEV_B .*opcode=READ_REQUEST len=46 last=1" \
		"^message_out dev=$DEV_B .*seq=-1 opcode=READ_RESPONSE len=3000" \
		"^fpdu_in dev=$DEV_A .*opcode=READ_RESPONSE .*last=1" \
		"^wr_complete dev=$DEV_A .*opcode=RDMA_READ status=SUCCESS len=3000"
	# A Send and its receive.
	ask a send "$C" 100 -
	in_order_soon "^message_out dev=$DEV_A .*opcode=SEND len=100" \
		"^fpdu_in dev=$DEV_B .*opcode=SEND len=118 last=1" \
		"^wr_complete dev=$DEV_B .*seq=-1 .*opcode=RECV status=SUCCESS len=100"
	await b 'wc * recv *'
	# Nothing is recorded without events.
	echo 0 >$TRACING/events/riwarp/enable
	echo >$TRACING/trace
	ask a send "$C" 100 -
	await b 'wc * recv *'
	[ -z "$(traced)" ] || die "$(traced)"
}

trace_a_fault() {
	tracing
	join 8192 2
	ask a write "$C" "$FROM" 0 8 $((AT + 8190)) "$KEY" -
	await a "disconnected $C"
	in_order_soon "^fault dev=$DEV_B qpn=[1-9][0-9]* code=0x11101 reason=\"data outside its region\"" \
		"^terminate dev=$DEV_B qpn=[1-9][0-9]* sent=1 code=0x11101" \
		"^terminate dev=$DEV_A qpn=[1-9][0-9]* sent=0 code=0x11101"
	in_order_soon "^conn_closed dev=$DEV_B .* reason=\"fault of the peer: data outside its region; DDP tagged buffer error: base or bounds violation \(0x11101\)\""
	in_order_soon "^conn_closed dev=$DEV_A .* reason=\"Terminate of the peer: "
	[ "$(traced fault | wc -l)" = 1 ] || die "$(traced fault)"
	[ "$(traced terminate | wc -l)" = 2 ] || die "$(traced terminate)"
	in_order "^wr_complete dev=$DEV_B .*seq=-1 .*opcode=RECV status=WR_FLUSH_ERR" || die "$(traced)"
}

trace_a_wait() {
	local i qp passive
	tracing
	join 8192 2
	await b 'established *'
	read -r _ passive _ <<<"$EVENT"
	# There are four receives.
	for i in 1 2 3 4 5; do ask a send "$C" 100 -; done
	in_order_soon "^receive_wait dev=$DEV_B qpn=[1-9][0-9]* begins=1"
	qp=$(traced receive_wait | sed -n "s/.* \(qpn=[0-9]*\) .*/\1/p")
	[ "$(traced receive_wait)" = "receive_wait dev=$DEV_B $qp begins=1" ] || die "$(traced receive_wait)"
	shows_soon qps "$DEV_B" rx_waits=receive
	ask b recv "$passive" 1
	in_order_soon "^receive_wait dev=$DEV_B $qp begins=1" \
		"^wr_complete dev=$DEV_B $qp seq=-1 .*opcode=RECV status=SUCCESS len=100" \
		"^receive_wait dev=$DEV_B $qp begins=0"
	[ "$(traced receive_wait | wc -l)" = 2 ] || die "$(traced receive_wait)"
}

trace_a_rule() {
	local qp
	tracing
	join 8192 2
	await b 'established *'
	echo 'nth=2 do=status=RETRY_EXC_ERR' >"/sys/class/infiniband/$DEV_A/inject"
	ask a send "$C" 100 -
	ask a send "$C" 100 -
	in_order_soon "^injected dev=$DEV_A qpn=[1-9][0-9]* wr_id=0x[0-9a-f]* rule=0"
	qp=$(traced injected | sed -n "s/.* \(qpn=[0-9]*\) .*/\1/p")
	in_order_soon "^wr_start dev=$DEV_A $qp " "^wr_complete dev=$DEV_A $qp .*status=SUCCESS" \
		"^injected dev=$DEV_A $qp " "^wr_start dev=$DEV_A $qp " \
		"^wr_complete dev=$DEV_A $qp .*status=RETRY_EXC_ERR"
	[ "$(traced injected | wc -l)" = 1 ] || die "$(traced injected)"
	echo clear >"/sys/class/infiniband/$DEV_A/inject"
}

# A message finds no receive, by a rule.
trace_a_finding() {
	tracing
	join 8192 2
	await b 'established *'
	echo 1 >"/sys/class/infiniband/$DEV_B/strict"
	echo 'on=recv op=send times=1 do=no-receive' >"/sys/class/infiniband/$DEV_B/inject"
	ask a send "$C" 100 -
	in_order_soon "^injected dev=$DEV_B qpn=[1-9][0-9]* wr_id=0x0 rule=0" \
		"^strict dev=$DEV_B qpn=[1-9][0-9]* wr_id=0x0 rule=4" \
		"^wr_complete dev=$DEV_B .* opcode=RECV status=SUCCESS"
	echo clear >"/sys/class/infiniband/$DEV_B/inject"
	echo 0 >"/sys/class/infiniband/$DEV_B/strict"
}

trace_a_refusal() {
	tracing
	serve 30 rping -s -a "$IP4_B" -p "$PORT" -C 1
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	in_ns "$NS_A" timeout 10 bash -c "exec 3<>/dev/tcp/$IP4_B/$PORT; echo 'GET / HTTP/1.0' >&3; cat <&3" || true
	in_order_soon "conn_phase dev=$DEV_B .* phase=waiting" \
		"conn_refused dev=$DEV_B conn=[0-9]* local=$IP4_B:$PORT peer=$IP4_A:[0-9]* reason=\"the peer sent no MPA frame\"" \
		"conn_phase dev=$DEV_B .* phase=released"
	kill "$SERVER_PID" 2>/dev/null || true
}

# Devices, queue pairs and connections come and go while the files are read all the time.
files_are_read_while_objects_change() {
	local i reader
	fresh_ends
	( while :; do cat "$FILES/qps" "$FILES/conns" || true; done >"$TMP/read" 2>/dev/null ) &
	reader=$!
	( while :; do cat "$FILES/conns" "$FILES/qps" || true; done >/dev/null 2>&1 ) &
	reader="$reader $!"
	for i in 1 2 3 4 5 6; do
		serve 60 rping -s -a "$IP4_B" -p "$PORT"
		STARTED=$SERVER_PID
		wait_listen "$PORT"
		start "$NS_A" "$TMP/client" rping -c -a "$IP4_B" -p "$PORT" -C 100000000
		eventually 20 shows qps "$DEV_A" phase=rts
		if [ $((i % 2)) = 0 ]; then rdma link del "$DEV_A"; rdma link del "$DEV_B"; fi
		kill -KILL "$STARTED" "$SERVER_PID" 2>/dev/null || true
		wait "$STARTED" "$SERVER_PID" 2>/dev/null || true
		PORT=$((PORT + 1))
		[ $((i % 2)) != 0 ] || { link_add "$NS_A" "$DEV_A" "$TYPE" "$NET_A"; link_add "$NS_B" "$DEV_B" "$TYPE" "$NET_B"; }
	done
	# Between two readers the module unloads.
	eventually 60 rmmod "$MODULE" || die 'the module stays'
	# shellcheck disable=SC2086
	kill $reader
	grep -q ' phase=rts ' "$TMP/read" || die 'nothing was read'
	modprobe "$MODULE"
}

# An open file holds the module, whose function its last close calls.
open_debugfs_file_holds_module() {
	local file fd
	for file in qps conns; do
		exec {fd}<"$FILES/$file"
		! rmmod "$MODULE" 2>"$TMP/rmmod" || die "unloaded with $file open"
		grep -q 'in use' "$TMP/rmmod" || die "$(cat "$TMP/rmmod")"
		cat <&"$fd" >/dev/null || die "$file cannot be read"
		exec {fd}<&-
		rmmod "$MODULE"
		modprobe "$MODULE"
	done
}

load_modules "$MODULE"
try nothing_without_devices 120 nothing_without_devices
try open_debugfs_file_holds_module 120 open_debugfs_file_holds_module
try connected 120 connected
try with_other_settings 120 with_other_settings
try stuck_on_tcp 120 stuck_on_tcp
try stuck_on_ord 120 stuck_on_ord
try stuck_on_a_fence 120 stuck_on_a_fence
try stuck_on_memory 120 stuck_on_memory
try stuck_on_the_window 120 stuck_on_the_window
try after_a_fault 120 after_a_fault
try starting_up 120 starting_up
try trace_a_connection 120 trace_a_connection
try trace_requests 120 trace_requests
try trace_a_fault 120 trace_a_fault
try trace_a_wait 120 trace_a_wait
try trace_a_rule 120 trace_a_rule
try trace_a_finding 120 trace_a_finding
try trace_a_refusal 120 trace_a_refusal
try files_are_read_while_objects_change 120 files_are_read_while_objects_change
finish
