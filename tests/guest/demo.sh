#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What tests/demo shows, measured in a guest. Prints one line per figure, with tabs between:
#
#     row PAIR PROGRAM SIZE FIGURE UNIT ok
#     row PAIR PROGRAM SIZE - - FAILED: why
#
# demo.sh pairs: riwarp to riwarp and riwarp to siw. demo.sh guests: the part of one of two guests.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

row() {
	printf 'row\t%s\t%s\t%s\t%s\t%s\t%s\n' "$@"
	case $6 in ok) ;; *) FAILED=$((FAILED + 1)) ;; esac
}

# Milliseconds since something.
now() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }

# measure PAIR PROGRAM SIZE UNIT COMMAND...: a row from a command that prints its figure last. PORT is
# one more than before. What fails must do so with its status: `set -e` does not hold in here.
measure() {
	local pair=$1 program=$2 size=$3 unit=$4 out=$TMP/out figure
	shift 4
	PORT=$((PORT + 1))
	if ("$@") >"$out" 2>&1; then
		figure=$(tail -n 1 "$out")
		case $figure in
		*[1-9]*) row "$pair" "$program" "$size" "$figure" "$unit" ok ;;
		*) row "$pair" "$program" "$size" - - "FAILED: no figure" ;;
		esac
	else
		row "$pair" "$program" "$size" - - "FAILED: $(last_line "$out")"
	fi
}

# Seconds since something in milliseconds.
since() { local t=$(($(now) - $1)); printf '%d.%02d\n' $((t / 1000)) $((t % 1000 / 10)); }

# Seconds for two programs to start, connect, and do 100 rounds; each round is a Read and a Write and
# their Sends, compared at the end.
rping_time() {
	local start
	start=$(now)
	rping_pair "$1" 100 -V && since "$start"
}

bandwidth() { perftest_pair "$@" && perftest_bw; }
latency() { perftest_pair "$@" && perftest_lat; }

# Few rounds, since an emulated processor is slow; enough for a figure.
rounds() {
	case $1/$2 in
	bw/64 | bw/4096) echo 500 ;;
	bw/65536) echo 100 ;;
	bw/*) echo 15 ;;
	lat/64 | lat/4096) echo 100 ;;
	lat/65536) echo 50 ;;
	*) echo 10 ;;
	esac
}

pairs() {
	local topology pair program size
	for topology in netns siw-server siw-client; do
		case $topology in
		netns) pair='riwarp to riwarp' ;;
		siw-server) pair='riwarp to siw' ;;
		siw-client) pair='siw to riwarp' ;;
		esac
		if ! ends_up "$topology" >"$TMP/ends" 2>&1; then
			row "$pair" set-up - - - "FAILED: $(last_line "$TMP/ends")"
			ends_down
			continue
		fi
		measure "$pair" 'rping, IPv4' verified s rping_time 4
		measure "$pair" 'rping, IPv6' verified s rping_time 6
		for program in ib_write_bw ib_read_bw ib_send_bw; do
			for size in 64 4096 65536 1048576; do
				measure "$pair" "$program -R" "$size" MiB/s \
					bandwidth "$program" -s "$size" -n "$(rounds bw "$size")"
			done
		done
		for program in ib_send_lat ib_write_lat; do
			for size in 64 4096 65536 1048576; do
				measure "$pair" "$program -R" "$size" us \
					latency "$program" -s "$size" -n "$(rounds lat "$size")"
			done
		done
		ends_down
	done
}

# One of two guests, joined by an emulated network: guest 1 listens, guest 2 calls.
guests() {
	local family peer=10.77.0.1 peer6=fd77::1
	load_modules riwarp
	NS_A=- NS_B=-
	link_add - riwarp0 riwarp eth0
	for family in 4 6; do
		[ "$family" = 4 ] || peer=$peer6
		if [ "$GUEST" = 1 ]; then
			PORT=$((PORT + 1))
			start - "$TMP/server" timeout --foreground 60 rping -s -a "$peer" -p "$PORT" -C 100 -V
			wait_listen "$PORT"
			: >"/mnt/out/listening$family"
			wait "$STARTED" || FAILED=1
		else
			eventually 60 test -e "/mnt/out/listening$family"
			measure 'two guests' "rping, IPv$family" verified s client_time "$peer"
		fi
	done
}

client_time() {
	local start
	start=$(now)
	timeout --foreground 60 rping -c -a "$1" -p "$PORT" -C 100 -V && since "$start"
}

"$1"
finish
