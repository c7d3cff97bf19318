#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What tests/demo shows, measured in a guest. Prints one line per figure, with tabs between:
#
#     row PAIR PROGRAM SIZE FIGURE UNIT ok
#     row PAIR PROGRAM SIZE - - FAILED: why
#
# demo.sh pairs: riwarp to riwarp and riwarp to siw. demo.sh guests: the part of one of two guests.
#
# An emulated processor takes half a second to start a perftest program: the next server starts while a
# client still runs. Two clients at a time would only measure each other: all these programs spin.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

PROGRAMS='ib_write_bw ib_read_bw ib_send_bw ib_send_lat ib_write_lat'
SIZES='64 4096 65536 1048576'

row() { printf 'row\t%s\t%s\t%s\t%s\t%s\t%s\n' "$@"; }

# measure PROGRAM SIZE UNIT COMMAND...: a row of PAIR, from a command that prints its figure last. What
# fails must do so with its status: `set -e` does not hold in here.
measure() {
	local program=$1 size=$2 unit=$3 out=$TMP/out.$BASHPID line figure=''
	shift 3
	if "$@" >"$out" 2>&1; then
		while read -r line; do figure=$line; done <"$out"
		case $figure in
		*[1-9]*) row "$PAIR" "$program" "$size" "$figure" "$unit" ok ;;
		*) row "$PAIR" "$program" "$size" - - "FAILED: no figure" ;;
		esac
	else
		row "$PAIR" "$program" "$size" - - "FAILED: $(last_line "$out")"
	fi
}

# stopwatch COMMAND...: the seconds that it takes.
stopwatch() {
	local begin=${EPOCHREALTIME/[.,]/} t
	"$@" || return 1
	t=$(((${EPOCHREALTIME/[.,]/} - begin) / 10000))
	printf '%d.%02d\n' $((t / 100)) $((t % 100))
}

# Few rounds, since an emulated processor is slow; enough for a figure.
rounds() {
	case $1/$2 in
	*_bw/64 | *_bw/4096) echo 300 ;;
	*_bw/65536) echo 20 ;;
	*_bw/*) echo 5 ;;
	*/64 | */4096) echo 50 ;;
	*/65536) echo 10 ;;
	*) echo 5 ;;
	esac
}

pairs() {
	local topology
	for topology in netns siw-server siw-client; do
		PORT=$((PORT + 100))
		case $topology in
		netns) PAIR='riwarp to riwarp' ;;
		siw-server) PAIR='riwarp to siw' ;;
		siw-client) PAIR='siw to riwarp' ;;
		esac
		if ends_up "$topology" >"$TMP/ends" 2>&1; then
			rows
		else
			row "$PAIR" set-up - - - "FAILED: $(last_line "$TMP/ends")"
		fi
		ends_down
	done
}

# The rows of one pair, between the ends that are up.
rows() {
	local family
	export PAIR DEV_A DEV_B IP4_B PORT SERVERS
	for family in 4 6; do
		# 100 rounds; each is a Read and a Write and their Sends, compared at the end.
		measure 'rping, IPv'"$family" verified s stopwatch rping_pair "$family" 100 -V
		PORT=$((PORT + 1))
	done
	start "$NS_B" "$TMP/servers" "$0" servers
	SERVERS=$STARTED
	in_ns "$NS_A" "$0" clients
	kill "$SERVERS" 2>/dev/null || true
	[ "$VERBOSE" = 0 ] || sed 's/^/# /' "$TMP/servers"
}

# One perftest server after the other, each on the next port; the next one starts before it is needed.
# One that fails says why and is started anew, for a client that tries again: more often than the client
# does, since that ends a server which may be a new one already.
servers() {
	local program size options n=0
	for program in $PROGRAMS; do
		for size in $SIZES; do
			[ "$n" -lt 2 ] || wait -n || true
			options="-R -F -d $DEV_B -p $((PORT + n)) -s $size -n $(rounds "$program" "$size")"
			# shellcheck disable=SC2086
			server "$program" $options &
			n=$((n + 1))
		done
	done
	wait
}

# server PROGRAM OPTIONS...
server() {
	local out=$TMP/server.$BASHPID try
	for try in 1 2 3 4; do
		"$@" >"$out" 2>&1 && return
		echo "$* (try $try): $(last_line "$out")"
	done
}

# The clients of these servers: a row each.
clients() {
	local program size unit
	for program in $PROGRAMS; do
		case $program in *_bw) unit=MiB/s ;; *) unit=us ;; esac
		for size in $SIZES; do
			measure "$program -R" "$size" "$unit" client "$program" -s "$size" -n "$(rounds "$program" "$size")"
			PORT=$((PORT + 1))
		done
	done
}

# client PROGRAM OPTIONS...: prints its figure.
client() {
	local program=$1 CLIENT_OUT=$TMP/client try
	shift
	for try in 1 2; do
		STARTED=$SERVERS wait_listen "$PORT" || return 1
		if "$program" -R -F -d "$DEV_A" -p "$PORT" "$@" "$IP4_B" >"$CLIENT_OUT" 2>&1; then
			perftest_figure "$program"
			return
		fi
		pkill -f -- "-d $DEV_B -p $PORT " || true
		too_early || break
	done
	cat "$CLIENT_OUT"
	return 1
}

# One of two guests, joined by an emulated network: guest 1 listens, guest 2 calls.
guests() {
	local family peer=10.77.0.1 peer6=fd77::1
	PAIR='two guests'
	load_modules riwarp
	NS_A=- NS_B=-
	link_add - riwarp0 riwarp eth0
	for family in 4 6; do
		[ "$family" = 4 ] || peer=$peer6
		PORT=$((PORT + 1))
		if [ "$GUEST" = 1 ]; then
			start - "$TMP/server" timeout --foreground 60 rping -s -a "$peer" -p "$PORT" -C 100 -V
			wait_listen "$PORT"
			: >"/mnt/out/listening$family"
			wait "$STARTED" || not_ok "rping -s, IPv$family" "$(last_line "$TMP/server")"
		else
			eventually 60 test -e "/mnt/out/listening$family"
			measure "rping, IPv$family" verified s stopwatch \
				timeout --foreground 60 rping -c -a "$peer" -p "$PORT" -C 100 -V
		fi
	done
}

"$1"
finish
