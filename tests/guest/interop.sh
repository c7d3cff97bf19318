#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# riwarp and siw, in both roles. siw has no settings: it never asks for CRC, but uses it if its peer
# asks. So riwarp's setting alone decides about CRC. siw refuses Markers, and riwarp never asks for
# any.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=wireshark.sh
. "$(dirname "$0")/wireshark.sh"
# shellcheck source=agents.sh
. "$(dirname "$0")/agents.sh"

sizes() {
	local size
	for size in 23 64 4096 65000; do
		rping_pair 4 5 -V -S "$size"
		PORT=$((PORT + 1))
	done
}

# two_agents: connects an agent on riwarp to one on siw. OURS and THEIRS are the names of riwarp's
# and siw's. AT[x] is the number of the connection at x; REGION[x], START[x] and KEY[x] are memory
# with all rights.
two_agents() {
	declare -gA AT REGION START KEY
	OURS=a THEIRS=b
	[ "$TYPE_A" != siw ] || { OURS=b THEIRS=a; }
	agent a "$NS_A" "$IP4_A"
	agent b "$NS_B" "$IP4_B"
	ask b listen "$PORT"
	again
	local end
	for end in a b; do
		ask $end mr 8192 7 0
		read -r "REGION[$end]" "START[$end]" "KEY[$end]" <<<"$ANSWER"
	done
}

# again: makes a connection.
again() {
	ask a connect "$IP4_B" "$PORT"
	AT[a]=$ANSWER
	await a "established ${AT[a]}"
	await b 'established *'
	read -r _ "AT[b]" _ <<<"$EVENT"
}

# did END COMMAND REST: has END post a request on its connection, and waits for its successful
# completion.
did() {
	ask "$1" "$2" "${AT[$1]}" "${@:3}"
	await "$1" "wc ${AT[$1]} send * success"
}

# told END LENGTH OCTETS: waits for the completion of a receive with this length, whose data begins
# with OCTETS.
told() {
	await "$1" "wc ${AT[$1]} recv * success $2 $3*"
}

# octets END OFFSET LENGTH OF_END OFFSET: checks that the memory at both places is equal, and not
# all zero.
octets() {
	local one
	ask "$1" peek "${REGION[$1]}" "$2" "$3"
	one=$ANSWER
	ask "$4" peek "${REGION[$4]}" "$5" "$3"
	[ "$one" = "$ANSWER" ] && [ -n "${one//0/}" ] || die "some of $3 octets have changed"
}

# messages FROM TO: sends each message that siw knows, but for Send with Invalidate.
messages() {
	local from=$1 to=$2 i pattern=33a71ac960fac695
	local mine=${REGION[$1]} at=${START[$2]} key=${KEY[$2]}
	ask "$from" fill "$mine" $((0x5a))
	for i in 0 1000 2999 3000 8000; do ask "$from" poke "$mine" "$i" "$pattern"; done
	ask "$to" recv "${AT[$to]}" 6

	did "$from" send 0 -
	told "$to" 0 -
	did "$from" send 5 -
	told "$to" 5 "${pattern::10}"
	did "$from" send 4000 -
	told "$to" 4000 "$pattern"
	did "$from" send 6 s
	told "$to" 6 "${pattern::12}"

	did "$from" write "$mine" 0 8 $((at + 100)) "$key" -
	did "$from" write "$mine" 0 3001 $((at + 200)) "$key" -
	# An empty Write needs no memory.
	did "$from" write "$mine" 0 0 0 0 -
	# Once this Send has arrived, all Writes have been placed.
	did "$from" send 1 -
	told "$to" 1 "${pattern::2}"
	octets "$from" 0 8 "$to" 100
	octets "$from" 0 3001 "$to" 200

	ask "$to" poke "${REGION[$to]}" 5000 "${pattern}01"
	did "$from" read "$mine" 4000 8 $((at + 5001)) "$key" -
	octets "$from" 4000 8 "$to" 5001
	did "$from" read "$mine" 5000 2999 $((at + 201)) "$key" -
	octets "$from" 5000 2999 "$to" 201
	did "$from" read "$mine" 0 0 0 0 -
}

# invalidates FROM TO KEY KEY: a Send with Invalidate, then one with Solicited Event too, for these
# keys at TO.
invalidates() {
	local from=$1 to=$2
	did "$from" sendinv 7 "$3" -
	told "$to" 7 33a71ac960fac6
	did "$from" sendinv 8 "$4" s
	told "$to" 8 33a71ac960fac695
}

# The keys to invalidate: at siw those of regions, because siw has no memory windows; at riwarp
# those of memory windows of this connection, because riwarp lets no peer invalidate a shared
# region.
all_messages() {
	local window key=() i
	two_agents
	messages "$OURS" "$THEIRS"
	messages "$THEIRS" "$OURS"
	ask "$THEIRS" mr 64 7 0
	key[0]=${ANSWER##* }
	ask "$THEIRS" mr 64 7 0
	key[1]=${ANSWER##* }
	invalidates "$OURS" "$THEIRS" "${key[@]}"
	for i in 0 1; do
		ask "$OURS" mr 64 17 0
		read -r key[i] _ <<<"$ANSWER"
		ask "$OURS" mw 2 0
		read -r window _ <<<"$ANSWER"
		ask "$OURS" bind "${AT[$OURS]}" "$window" "${key[i]}" 0 64 2
		key[i]=$ANSWER
		await "$OURS" "wc ${AT[$OURS]} send * success"
	done
	invalidates "$THEIRS" "$OURS" "${key[@]}"
	for i in a b; do ask $i guards; done
}

# crc_is 1|0: checks that the ends negotiate CRC or not, and that each message is sent whole, with a
# right CRC or without any. siw's Reply has the CRC flag of the Request; as initiator, siw accepts
# the flag of the Reply.
crc_is() {
	local file=$TMP/traffic wanted=$1 asked=$1 op
	[ "$OURS" = a ] || asked=0
	BARE=0
	[ "$wanted" = 1 ] || BARE=all
	BARE=$BARE decode "$file"
	fields "$file" >"$file.fields"
	diff - <(grep -oE '^. re. .*crc_flag=. rej_flag=.' "$file.fields") <<-END || die 'the start-up is not as expected'
		a req marker_flag=0 crc_flag=$asked rej_flag=0
		b rep marker_flag=0 crc_flag=$wanted rej_flag=0
	END
	for op in 0 1 2 3 4 5 6; do
		grep -q "^a fpdu.* opcode=0x0$op" "$file.fields" || die "a has sent no opcode $op"
		grep -q "^b fpdu.* opcode=0x0$op" "$file.fields" || die "b has sent no opcode $op"
	done
}

each_message() {
	our_setting crc "$1"
	capture "$NS_A" "$NET_A" "$TMP/traffic" all_messages
	crc_is "$1"
}

# our_setting NAME VALUE: sets riwarp's device.
our_setting() {
	if [ "$TYPE_A" = siw ]; then
		setting "$NS_B" "$DEV_B" "$@"
	else
		setting "$NS_A" "$DEV_A" "$@"
	fi
}

# riwarp offers to tell its features by a flag that RFC 5044 reserves, and with `extensions` on Send
# with Immediate by another one. siw does not know the flags and sends them back, which agrees on
# nothing: each message is as before, in FPDUs of one segment, and a Send with Immediate fails before
# riwarp sends an octet of it.
extensions_on() {
	local flags=0x15
	[ "$TYPE_A" != siw ] || flags=0x10
	our_setting crc 1
	our_setting extensions 1
	capture "$NS_A" "$NET_A" "$TMP/traffic" messages_and_one_too_many
	our_setting extensions 0
	crc_is 1
	# The flags include that of revision 2 for enhanced data.
	diff - <(sed -nE 's/^(. re.) .* (res=[^ ]*).*/\1 \2/p' "$TMP/traffic.fields") <<-END || die 'the flags are not as expected'
		a req res=$flags
		b rep res=$flags
	END
	awk -F 'ulpdulength=' '$2 + 0 > 1442 { print; bad = 1 } END { exit bad }' "$TMP/traffic.fields" ||
		die 'an FPDU does not fit into a segment'
	! grep 'opcode=0x0f' "$TMP/traffic.fields" || die 'a Send with Immediate has gone out'
}

messages_and_one_too_many() {
	local end
	all_messages
	ask "$OURS" sendimm "${AT[$OURS]}" 5 7 -
	await "$OURS" "wc ${AT[$OURS]} send * loc_qp_op"
	for end in a b; do await $end "disconnected ${AT[$end]}"; done
}

without_crc() {
	our_setting crc 0
	"$@"
}

# have_failed: waits until both ends are disconnected; riwarp's queue pair must be in error, and
# each of its receives flushed.
have_failed() {
	local end i
	for end in a b; do await $end "disconnected ${AT[$end]}"; done
	for i in 1 2 3 4; do await "$OURS" "wc ${AT[$OURS]} recv * flushed"; done
	ask "$OURS" state "${AT[$OURS]}"
	[ "$ANSWER" = 6 ] || die "riwarp's queue pair is in state $ANSWER"
}

# Writes and Reads that siw refuses, and those that riwarp refuses. A Write completes when TCP has
# it, even if the peer refuses it; a Read does not.
all_refusals() {
	local mine theirs
	two_agents
	mine="${REGION[$OURS]} 0 16 $((START[$THEIRS] + 8190)) ${KEY[$THEIRS]} -"
	theirs="${REGION[$THEIRS]} 0 16 $((START[$OURS] + 8190)) ${KEY[$OURS]} -"
	# shellcheck disable=SC2086
	{
		did "$OURS" write $mine
		await "$OURS" "event ${AT[$OURS]} QP_FATAL"
		have_failed
		again
		ask "$OURS" read "${AT[$OURS]}" $mine
		await "$OURS" "wc ${AT[$OURS]} send * $1"
		await "$OURS" "event ${AT[$OURS]} QP_FATAL"
		have_failed
		again
		did "$THEIRS" write $theirs
		await "$OURS" "event ${AT[$OURS]} QP_ACCESS_ERR"
		have_failed
		again
		ask "$THEIRS" read "${AT[$THEIRS]}" $theirs
		await "$OURS" "event ${AT[$OURS]} QP_ACCESS_ERR"
		await "$THEIRS" "wc ${AT[$THEIRS]} send *"
		case $EVENT in *success*) die "siw's Read has not failed" ;; esac
		have_failed
	}
	# No octet was placed.
	for mine in a b; do
		ask $mine odd "${REGION[$mine]}" 0
		[ "$ANSWER" = -1 ] || die "memory of $mine was written to at $ANSWER"
		ask $mine guards
	done
	again
}

# Each refusal sends a Terminate.
refusals() {
	local file=$TMP/refusals ours=$IP4_A
	[ "$TYPE_A" != siw ] || ours=$IP4_B
	capture "$NS_A" "$NET_A" "$file" all_refusals "$1"
	decode "$file" "ip.src == $ours"
	# DDP, Tagged Buffer Error, Base or bounds violation.
	# RDMAP, Remote Protection Error, Base or bounds violation.
	diff - <(sed -n 's/^[0-9]* terminate/terminate/p' "$file.seen") <<-'END' || die 'the Terminates are not as expected'
		terminate layer 0x1 etype 0x1 code 0x01 bits MD length 001e header c140 ulpdu 38
		terminate layer 0x0 etype 0x1 code 0x01 bits MDR length 002e header 4141 ulpdu 70
	END
	# Of siw's Terminates, only the number is checked.
	fields "$file" >"$file.fields"
	[ "$(grep -c "^$THEIRS fpdu.* opcode=0x07" "$file.fields")" = 2 ] || die 'siw has not sent two Terminates'
}

export PERFTEST_LIMIT=110
for topology in siw-server siw-client; do
	ends_up "$topology"
	try "$topology/rping_ipv4" 60 rping_pair 4 20 -V
	try "$topology/rping_ipv6" 60 rping_pair 6 20 -V
	try "$topology/rping_sizes" 90 sizes
	for tool in write read send; do
		try "$topology/ib_${tool}_bw" 120 perftest_checked 1 "ib_${tool}_bw" -s 65536 -n 50
		try "$topology/ib_${tool}_bw_2_mib" 120 perftest_checked 1 "ib_${tool}_bw" -s 2097152 -n 5
		try "$topology/ib_${tool}_lat" 60 perftest_checked 1 "ib_${tool}_lat" -s 64 -n 100
	done
	try "$topology/ib_send_bw_bidirectional" 90 perftest_checked 1 ib_send_bw -b -s 4096 -n 100
	try "$topology/ib_write_bw_queue_pairs" 90 perftest_checked 1 ib_write_bw -q 4 -s 4096 -n 100
	try "$topology/rdma_client_server" 60 client_server
	try "$topology/ib_send_bw_events" 60 perftest_checked 1 ib_send_bw -e -s 4096 -n 500
	try "$topology/each_message" 120 each_message 1
	try "$topology/refusals" 90 refusals rem_op
	try "$topology/each_message_without_crc" 120 each_message 0
	try "$topology/extensions_on" 120 extensions_on
	try "$topology/rping_without_crc" 60 without_crc rping_pair 4 20 -V
	try "$topology/ib_write_bw_without_crc" 60 without_crc perftest_checked 1 ib_write_bw -s 65536 -n 50
	try "$topology/ib_read_bw_without_crc" 60 without_crc perftest_checked 1 ib_read_bw -s 65536 -n 50
	ends_down
done
finish
