#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Wireshark's reading of what goes over the wire: every octet decoded, every CRC right, no
# complaint, and each Terminate says what RFC 5040 and RFC 5041 have for the fault.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# capture NETNS NETDEV FILE COMMAND...: what ports PORT..PORT+9 carry while a command runs.
capture() {
	local ns=$1 netdev=$2 file=$3 pid last=$((PORT + 9))
	shift 3
	start "$ns" "$TMP/tcpdump" \
		tcpdump -i "$netdev" -B 32768 -s 0 -U -w "$file" "tcp portrange $PORT-$last"
	pid=$STARTED
	eventually 10 grep -q 'listening on' "$TMP/tcpdump" || die "tcpdump: $(cat "$TMP/tcpdump")"
	"$@"
	# tcpdump takes the kernel's buffer block by block, up to a second late: everything is in the
	# file when this refused connection is.
	in_ns "$ns" bash -c "! : >/dev/tcp/$IP4_B/$last" 2>/dev/null
	eventually 20 refusal_in "$file" "$last" || die 'tcpdump is behind'
	kill "$pid"
	wait "$pid" || true
	grep -q '^0 packets dropped by kernel' "$TMP/tcpdump" ||
		die "lost packets: $(cat "$TMP/tcpdump")"
}

refusal_in() {
	tcpdump -n -r "$1" "src port $2 and tcp[tcpflags] & tcp-rst != 0" 2>/dev/null | grep -q .
}

# decode FILE: what tshark makes of it, in full, to FILE.txt; and to FILE.seen a line per opcode,
# one per Terminate, and the counts. Fails if anything is not as it must be for every capture.
#
# Only the text says what tshark thinks of a CRC. What these Sends carry is no protocol: nothing may
# guess at it. An octet that TCP sent again counts once.
decode() {
	tshark -r "$1" -o tcp.try_heuristic_first:TRUE -V -O iwarp_mpa,iwarp_ddp_rdmap \
		--disable-heuristic rpcrdma_iwarp --disable-heuristic smb_direct_iwarp \
		-Y 'tcp.len > 0 && !tcp.analysis.retransmission' >"$1.txt" 2>"$1.err" ||
		die "tshark: $(tail -n 1 "$1.err")"
	awk '
	function value(of) { match($0, of ": [0-9]+"); return substr($0, RSTART + length(of) + 2) + 0 }
	function code() { match($0, /\(0x[0-9a-f]+\)/); return substr($0, RSTART + 1, RLENGTH - 2) }
	function say(what) { if (bad++ < 10) print "frame " frame ": " what }
	# A frame that carries whole FPDUs, all of them.
	function close_frame() { if (length_here && here == length_here) whole++; here = length_here = 0 }
	/^Frame [0-9]+:/ { close_frame(); frame = $2 + 0; frames++ }
	/^Transmission Control Protocol/ {
		way = value("Src Port") " " value("Dst Port")
		length_here = value("Len")
		end = value("Seq") + length_here - 1
		if (end > ends[way]) ends[way] = end
	}
	/Malformed|Expert Info \((Warning|Error)/ { say($0) }
	/Request frame header/ { requests++ }
	/Reply frame header/ { replies++ }
	/Private data length:/ { here += 20 + value("length"); decoded += 20 + value("length") }
	/ULPDU length:/ {
		ulpdu = value("length")
		fpdus++
		fpdu = int((2 + ulpdu + 3) / 4) * 4 + 4	# with its length, pad and CRC
		here += fpdu
		decoded += fpdu
	}
	/CRC check: 0x[0-9a-f]+ \(Good CRC32\)/ { good++ }
	/CRC check: .*Bad/ { say($0) }
	/ OpCode: / { opcodes[code()]++ }
	/ Layer: / { terminate = "terminate layer " code() }
	/ Error Types for / { terminate = terminate " etype " code() }
	/ Error Code for / { terminate = terminate " code " code() " bits " }
	/ [MDR] bit: Set/ { match($0, /[MDR] bit/); terminate = terminate substr($0, RSTART, 1) }
	/DDP Segment Length: / { terminate = terminate " length " $4 }
	/Terminated DDP Header: / { print terminate " header " substr($4, 1, 4) " ulpdu " ulpdu }
	END {
		close_frame()
		for (way in ends) carried += ends[way]
		for (op in opcodes) print "opcode " op " " opcodes[op]
		print frames + 0 " frames, " requests + 0 " requests, " replies + 0 " replies, " fpdus + 0 \
			" FPDUs, " good + 0 " good CRCs, " decoded + 0 " of " carried + 0 " octets decoded"
		print whole + 0 " of " frames + 0 " segments carry whole FPDUs"
		exit bad || !requests || requests != replies || !fpdus || good != fpdus ||
			decoded != carried
	}' "$1.txt" >"$1.seen" || { cat "$1.seen"; die 'the capture has faults'; }
	cat "$1.seen"
}

transfers() {
	rping_pair 4 2 -V -S 20000
	PORT=$((PORT + 1))
	rping_pair 6 2 -V -S 201
	PORT=$((PORT + 1))
	perftest_pair ib_send_bw -s 5001 -n 10
}

# Seen at end A.
traffic_is_decoded() {
	local file=$TMP/traffic op
	capture "$NS_A" "$NET_A" "$file" transfers
	decode "$file"
	for op in 0x0 0x1 0x2 0x3; do
		grep -q "^opcode $op " "$file.seen" || die "no opcode $op"
	done
}

# Where nothing is behind it that could share its segment, an FPDU has one for itself (RFC 5044, section 5.1).
segments_carry_whole_fpdus() {
	local file=$TMP/aligned whole frames
	capture "$NS_A" "$NET_A" "$file" rping_pair 4 3 -V -S 20000
	decode "$file"
	read -r whole _ frames _ < <(grep 'carry whole FPDUs$' "$file.seen")
	[ "$frames" -gt 90 ] && [ "$whole" = "$frames" ]
}

# ... also where TCP would put a number of octets into a segment that no FPDU has.
whatever_the_mtu() {
	ends_mtu 1450
	segments_carry_whole_fpdus
	ends_mtu 1500
}

# verbs_case PROGRAM CASE
verbs_case() {
	CASE=$2 PORT=$PORT in_ns "$NS_B" within 30 "$VERBS_DIR/$1" "$IP4_B"
	PORT=$((PORT + 1))
}

refused() {
	verbs_case rdma read_without_right
	verbs_case rdma write_past_the_end
	verbs_case sends no_receive_buffer_ends_the_stream
}

# Layer, error type and code (RFC 5040, section 4.8; RFC 5041, section 7.2), the M, D and R bits,
# what is quoted of the refused segment (its length, the first octets of its header), and the
# length of it all.
terminates_are_decoded() {
	local file=$TMP/refused
	# Both ends are on one device, so through lo it goes.
	capture "$NS_B" lo "$file" refused
	decode "$file"
	# RDMAP, Remote Protection Error, Access rights violation: a Read Request of 18 + 28 octets.
	# DDP, Tagged Buffer Error, Base or bounds violation: a Write of 14 + 100 octets.
	# DDP, Untagged Buffer Error, Invalid MSN - no buffer available: a Send of 18 + 16 octets.
	diff - <(grep '^terminate' "$file.seen") <<-'END' || die 'these are not the Terminates expected'
		terminate layer 0x0 etype 0x1 code 0x02 bits MDR length 002e header 4141 ulpdu 70
		terminate layer 0x1 etype 0x1 code 0x01 bits MD length 0072 header c140 ulpdu 38
		terminate layer 0x1 etype 0x2 code 0x02 bits MD length 0022 header 4143 ulpdu 42
	END
}

atomics() {
	EXTENSIONS=1 verbs_case extensions fetch_and_add
	EXTENSIONS=1 verbs_case extensions compare_and_swap
}

# The operations of two cases, field by field (RFC 7306, section 5.2), as the cases have them: what is asked, and
# behind it the answer to that. tshark calls the value of an answer as it calls the field before it.
atomics_are_decoded() {
	local file=$TMP/atomics
	capture "$NS_B" lo "$file" atomics
	decode "$file"
	sed -nE 's/^ +((Original )?Request Identifier|(Add|Swap|Compare) (Data|Mask)): /\1 /p' "$file.txt" |
		sed 's/0xffffffffffffffff/all/; s/0x0000000000000000/none/; s/18446744073709551615/-1/' |
		paste -d , - - - - - - - >"$file.fields"
	diff - "$file.fields" <<-'END' || die 'these are not the operations expected'
		Request Identifier 1,Add Data 2,Add Mask none,Compare Data 0,Compare Mask all,Original Request Identifier 1,Original Request Identifier 40
		Request Identifier 2,Add Data 1,Add Mask none,Compare Data 0,Compare Mask all,Original Request Identifier 2,Original Request Identifier -1
		Request Identifier 3,Add Data 1,Add Mask none,Compare Data 0,Compare Mask all,Original Request Identifier 3,Original Request Identifier 4294967295
		Request Identifier 4,Add Data -1,Add Mask none,Compare Data 0,Compare Mask all,Original Request Identifier 4,Original Request Identifier 5
		Request Identifier 1,Swap Data 9,Swap Mask all,Compare Data 7,Compare Mask all,Original Request Identifier 1,Original Request Identifier 7
		Request Identifier 2,Swap Data 9,Swap Mask all,Compare Data 8,Compare Mask all,Original Request Identifier 2,Original Request Identifier 7
		Request Identifier 3,Swap Data 0,Swap Mask all,Compare Data -1,Compare Mask all,Original Request Identifier 3,Original Request Identifier -1
	END
	[ "$(grep -cE '^ +Remote (STag|Tagged Offset): [1-9]' "$file.txt")" = 14 ] || die 'no targets'
}

ends_up netns
# Segments as they would be on a real wire.
in_ns "$NS_A" ethtool -K "$NET_A" tso off gso off gro off >/dev/null
in_ns "$NS_B" ethtool -K "$NET_B" tso off gso off gro off >/dev/null
try traffic_is_decoded 90 traffic_is_decoded
try segments_carry_whole_fpdus 60 segments_carry_whole_fpdus
try whatever_the_mtu 60 whatever_the_mtu
try terminates_are_decoded 60 terminates_are_decoded
try atomics_are_decoded 60 atomics_are_decoded
finish
