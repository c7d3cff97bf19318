# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Captures traffic and has Wireshark decode it. Sourced after lib.sh.

# The payload here is random or a pattern: tshark must not guess a protocol in it.
TSHARK=(tshark -o 'tcp.try_heuristic_first:TRUE'
	--disable-heuristic rpcrdma_iwarp --disable-heuristic smb_direct_iwarp)
# Counts retransmitted octets once.
FRESH='tcp.len > 0 && !tcp.analysis.retransmission'

# capture NETNS NETDEV FILE COMMAND...: captures ports PORT..PORT+9, or the tcpdump filter CAPTURED,
# while a command runs.
capture() {
	local ns=$1 netdev=$2 file=$3 pid last=$((PORT + 9))
	shift 3
	start "$ns" "$TMP/tcpdump" \
		tcpdump -i "$netdev" -B 32768 -s 0 -U -w "$file" "${CAPTURED:-tcp portrange $PORT-$last}"
	pid=$STARTED
	eventually 10 grep -q 'listening on' "$TMP/tcpdump" || die "tcpdump: $(cat "$TMP/tcpdump")"
	"$@"
	# tcpdump reads the kernel's buffer in blocks, up to a second late: the capture is complete
	# once it shows this refused connection.
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

# decode FILE [FILTER]: decodes a capture with tshark: the full text to FILE.txt; a line per opcode,
# one per Terminate, and the counts to FILE.seen. Fails on anything that no capture may show. A
# FILTER selects the packets; without one, both directions are there, with a Reply for each Request.
# BARE is the number of FPDUs without a CRC, or all.
#
# Only the text output shows how tshark judges a CRC.
decode() {
	"${TSHARK[@]}" -r "$1" -V -O iwarp_mpa,iwarp_ddp_rdmap -Y "$FRESH${2:+ && $2}" \
		>"$1.txt" 2>"$1.err" || die "tshark: $(tail -n 1 "$1.err")"
	awk -v one_way="${2:+1}" -v may_be_bare="${BARE:-0}" '
	function value(of) { match($0, of ": [0-9]+"); return substr($0, RSTART + length(of) + 2) + 0 }
	function code() { match($0, /0x[0-9a-f]+\)?$/); sub(/\)$/, ""); return substr($0, RSTART) }
	function say(what) { if (bad++ < 10) print "frame " frame ": " what }
	# Counts a frame if it carries only whole FPDUs.
	function close_frame() { if (length_here && here == length_here) whole++; here = length_here = 0 }
	function close_terminate() { if (terminate != "") print terminate " ulpdu " ulpdu; terminate = "" }
	/^Frame [0-9]+:/ { close_terminate(); close_frame(); frame = $2 + 0; frames++ }
	/^Transmission Control Protocol/ {
		to = value("Dst Port")
		way = value("Src Port") " " to
		length_here = value("Len")
		if (length_here > longest) longest = length_here
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
		fpdu = int((2 + ulpdu + 3) / 4) * 4 + 4	# including length, padding and CRC
		here += fpdu
		decoded += fpdu
	}
	/FPDU back pointer:/ { markers++; here += 4; decoded += 4 }
	/CRC check: 0x[0-9a-f]+ \(Good CRC32\)/ { good++ }
	/CRC check: .*Bad/ { say($0) }
	/ CRC: 0x/ { bare++ }
	/^ *\.\.\.\. [01][01][01][01] = OpCode: / { opcodes[code()]++ }
	/ Layer: / { terminate = to " terminate layer " code() }
	/ Error Types( for .*)?: / { terminate = terminate " etype " code() }
	/ Error Code( for .*)?: / { terminate = terminate " code " code() " bits " }
	/ [MDR] bit: Set/ { match($0, /[MDR] bit/); terminate = terminate substr($0, RSTART, 1) }
	/DDP Segment Length: / { terminate = terminate " length " $4 }
	/Terminated DDP Header: / { terminate = terminate " header " substr($4, 1, 4) }
	END {
		close_terminate()
		close_frame()
		for (way in ends) carried += ends[way]
		for (op in opcodes) print "opcode " op " " opcodes[op]
		print frames + 0 " frames, " requests + 0 " requests, " replies + 0 " replies, " fpdus + 0 \
			" FPDUs, " good + 0 " good CRCs, " bare + 0 " without, " markers + 0 " Markers, " \
			decoded + 0 " of " carried + 0 " octets decoded"
		print whole + 0 " of " frames + 0 " segments carry whole FPDUs"
		print longest + 0 " octets in the longest segment"
		exit bad || !(requests + replies) || (!one_way && requests != replies) || !fpdus ||
			good + bare != fpdus || decoded != carried ||
			(may_be_bare == "all" ? good : bare + 0 != may_be_bare)
	}' "$1.txt" >"$1.seen" || { cat "$1.seen"; die 'the capture has faults'; }
	cat "$1.seen"
}

# fields FILE: prints a line per start-up frame and FPDU: the end that sent it, then the fields that
# tshark knows, as NAME=VALUE. Fields with one legal value (versions, reserved ones, pad) appear
# only if they have another; data appears if it is short. Of Immediate Data tshark knows the headers
# only: the octets are cut from the segment. A Terminate has all that it quotes in one field,
# term_ddp_h.
fields() {
	"${TSHARK[@]}" -r "$1" -T pdml -Y "$FRESH" 2>"$1.err" >"$1.pdml" ||
		die "tshark: $(tail -n 1 "$1.err")"
	awk -v end_a="$IP4_A" '
	function attr(name) {
		if (!match($0, " " name "=\"[^\"]*\"")) return ""
		return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4)
	}
	# Returns octets of the segment in hexadecimal.
	function cut(from, count) { return substr(segment, 2 * (from - begin) + 1, 2 * count) }
	function finish() { if (line != "") print line; line = "" }
	BEGIN {
		only["key.req"] = "4d504120494420526571204672616d65"	# MPA ID Req Frame
		only["key.rep"] = "4d504120494420526570204672616d65"	# MPA ID Rep Frame
		only["dv"] = only["version"] = "1"
		only["marker_res"] = "0000"
		only["rsvd"] = only["rsv"] = only["term_rsvd"] = only["atomic.reserved"] = "0"
		only["reserved"] = "00000000"
		# Printed as tshark shows them; all others as hexadecimal octets.
		split("res rev pdlength ulpdulength qn msn mo opcode rdmardsz term_layer term_etype_rdma" \
			" term_etype_ddp term_etype_llp atomic.opcode atomic.request_identifier" \
			" atomic.add_data atomic.swap_data atomic.compare_data" \
			" atomic.original_request_identifier atomic.original_remote_data_value", names, " ")
		for (i in names) plain[names[i]] = 1
	}
	/<packet>/ { finish() }
	/<field name="ip\.src"/ { from = attr("show") == end_a ? "a" : "b" }
	/<field name="tcp\.payload"/ { segment = attr("value"); begin = attr("pos") }
	/<field name="iwarp_mpa\.(req|rep|fpdu)"/ {
		finish()
		name = attr("name")
		sub(/.*\./, "", name)
		line = from " " name
		next
	}
	/<field name="data\.data"/ && length(attr("value")) <= 32 { line = line " data=" attr("value") }
	/<field name="iwarp_(mpa|ddp|rdma)\./ {
		name = attr("name")
		sub(/^[^.]*\./, "", name)
		value = attr(name in plain ? "show" : "value")
		if (value == "" || name ~ /^(send\.|rsvdulp$|control_field$)/) next
		if (name == "pad" && value ~ /^0+$/) next
		if (name == "crc_check" && /Good CRC32/) next
		if (name in only && value == only[name]) next
		if (name == "ulpdulength") ulpdu = value
		if (name == "mo") behind = attr("pos") + 4
		# tshark finds another end of the quote; this takes all of it.
		if (name == "term_ddp_h" && index(cut(behind + 6, ulpdu - 24), value) == 1)
			value = cut(behind + 6, ulpdu - 24)
		if (name == "term_rdma_h") next
		line = line " " name "=" value
		if (name == "opcode" && (value == "0x08" || value == "0x09"))
			line = line " data=" cut(behind, ulpdu - 18)
	}
	END { finish() }' "$1.pdml"
	rm "$1.pdml"
}
