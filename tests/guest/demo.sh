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

# Few rounds, since an emulated processor is slow; enough for a figure.
rounds() {
	case $1/$2 in
	*_bw/64 | *_bw/4096) echo 500 ;;
	*_bw/65536) echo 40 ;;
	*_bw/*) echo 8 ;;
	*/64 | */4096) echo 100 ;;
	*/65536) echo 20 ;;
	*) echo 5 ;;
	esac
}

pairs() {
	local topology pair
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
		perftest_rows_of "$pair" ib_write_bw ib_read_bw ib_send_bw ib_send_lat ib_write_lat
		ends_down
	done
}

# perftest_rows_of PAIR PROGRAM...: the rows of perftest programs. A server takes as long to start as a
# client does, so the next one starts meanwhile.
perftest_rows_of() {
	local pair=$1 program size i todo=() pid out
	shift
	for program; do
		for size in 64 4096 65536 1048576; do todo+=("$program $size"); done
	done
	PORT=$((PORT + 1))
	# shellcheck disable=SC2086
	ahead ${todo[0]}
	for ((i = 0; i < ${#todo[@]}; i++)); do
		read -r program size <<<"${todo[i]}"
		pid=$SERVER_PID out=$SERVER_OUT
		# shellcheck disable=SC2086
		[ "$i" = $((${#todo[@]} - 1)) ] || PORT=$((PORT + 1)) ahead ${todo[i + 1]}
		figures_of "$pair" "$program" "$size" "$pid" "$out"
		PORT=$((PORT + 1))
	done
}

# ahead PROGRAM SIZE: starts the server of a row, on PORT.
ahead() { serve 60 "$1" -R -F -d "$DEV_B" -p "$PORT" -s "$2" -n "$(rounds "$1" "$2")"; }

# figures_of PAIR PROGRAM SIZE SERVER OUTPUT: the row of a program whose server was started before.
figures_of() {
	local program=$2 size=$3 why=$TMP/why.$BASHPID unit=MiB/s figure
	local SERVER_PID=$4 SERVER_OUT=$5
	local arguments=(-s "$size" -n "$(rounds "$program" "$size")")
	if call 60 "$program" -R -F -d "$DEV_A" -p "$PORT" "${arguments[@]}" "$IP4_B" >"$why" 2>&1 ||
		{ too_early && PORT=$((PORT + 1000)) perftest_pair "$program" "${arguments[@]}" >"$why" 2>&1; }; then
		case $program in
		*_bw) figure=$(perftest_bw) ;;
		*) figure=$(perftest_lat) unit=us ;;
		esac
		case $figure in
		*[1-9]*) row "$1" "$program -R" "$size" "$figure" "$unit" ok ;;
		*) row "$1" "$program -R" "$size" - - "FAILED: no figure" ;;
		esac
	else
		row "$1" "$program -R" "$size" - - "FAILED: $(last_line "$why")"
	fi
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
