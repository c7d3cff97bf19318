#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Measures for tests/demo, in a guest. Prints one line per figure, separated by tabs:
#
#     row PAIR PROGRAM SIZE FIGURE UNIT ok
#     row PAIR PROGRAM SIZE - - FAILED: why
#
# Run it with qemu/run --guests 2 --out DIR: guest 1 has all ends but one, guest 2 connects to it.
# TYPE is the link type shown.
#
# An emulated processor takes half a second to start a perftest program, so the next servers start
# while a client still runs. Two clients at a time would slow each other, because these programs
# spin. Only ib_write_bw and its server sleep for a second first; others run meanwhile.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

PROGRAMS='ib_write_bw ib_read_bw ib_send_bw ib_send_lat ib_write_lat'
SIZES='64 4096 65536 1048576'
# Each round does a Read, a Write and their Sends; rping compares the data at the end.
RPINGS=30
# Two short runs follow each run of ib_write_bw.
SCHEDULE='ib_write_bw/64 ib_read_bw/64 ib_read_bw/4096 ib_write_bw/4096 ib_read_bw/65536 ib_send_bw/64
ib_write_bw/65536 ib_send_bw/4096 ib_send_bw/65536 ib_write_bw/1048576 ib_send_lat/64 ib_read_bw/1048576
ib_send_bw/1048576 ib_send_lat/4096 ib_send_lat/65536 ib_send_lat/1048576 ib_write_lat/64 ib_write_lat/4096
ib_write_lat/65536 ib_write_lat/1048576'

row() { printf 'row\t%s\t%s\t%s\t%s\t%s\t%s\n' "$@"; }

# measure PROGRAM SIZE UNIT COMMAND...: prints a row of PAIR; the command prints its figure last.
# The command must report failure by its status, because `set -e` has no effect here.
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

# stopwatch COMMAND...: runs it and prints the seconds that it took.
stopwatch() {
	local begin=${EPOCHREALTIME/[.,]/} t
	"$@" || return 1
	t=$(((${EPOCHREALTIME/[.,]/} - begin) / 10000))
	printf '%d.%02d\n' $((t / 100)) $((t % 100))
}

# rounds PROGRAM/SIZE: prints the number of iterations: few for an emulated processor, but enough
# for a figure.
rounds() {
	case $1 in
	*_bw/64) echo 300 ;;
	*_bw/4096) echo 100 ;;
	*_bw/65536) echo 20 ;;
	*_bw/*) echo 5 ;;
	*/64 | */4096) echo 50 ;;
	*/65536) echo 10 ;;
	*) echo 5 ;;
	esac
}

# Measures one pair after the other; the ends of the next pair are set up meanwhile.
pairs() {
	local topology up measured=''
	for topology in netns siw-server siw-client; do
		case $topology in
		netns) PAIR="$TYPE to $TYPE" ;;
		siw-server) PAIR="$TYPE to siw" ;;
		siw-client) PAIR="siw to $TYPE" ;;
		esac
		up=yes
		ends_up "$topology" 9000 >"$TMP/ends" 2>&1 || up="FAILED: $(last_line "$TMP/ends")"
		[ -z "$measured" ] || wait "$measured"
		measure_pair "$up" &
		measured=$!
		# The process of measure_pair takes these down.
		LINKS_MADE=() ADDRESSES_MADE=() NETDEVS_MADE=() NETNS_MADE=()
		PORT=$((PORT + 200))
	done
	wait "$measured"
}

# measure_pair yes|WHY: prints the rows of the pair whose ends are up, or why they are not; takes
# the ends down.
measure_pair() {
	if [ "$1" = yes ]; then
		rows
	else
		row "$PAIR" set-up - - - "$1"
	fi
	ends_down
}

# Prints the rows of one pair, whose ends are up.
rows() {
	local family program size row
	local -A found=()
	export PAIR DEV_A DEV_B IP4_B PORT SERVERS
	# The first servers start while rping runs.
	start "$NS_B" "$TMP/servers" "$0" servers
	SERVERS=$STARTED
	for family in 4 6; do
		PORT=$((PORT + 40 + family)) measure 'rping, IPv'"$family" "$RPINGS rounds" s \
			stopwatch rping_pair "$family" "$RPINGS" -V
	done
	in_ns "$NS_A" "$0" clients >"$TMP/rows"
	kill "$SERVERS" 2>/dev/null || true
	while IFS= read -r row; do
		[[ ! $row =~ (ib_[a-z_]+)\ -R$'\t'([0-9]+) ]] || found[${BASH_REMATCH[1]}/${BASH_REMATCH[2]}]=$row
	done <"$TMP/rows"
	for program in $PROGRAMS; do
		for size in $SIZES; do
			row=${found[$program/$size]}
			# perftest measures the processor's clock for each figure, and sometimes
			# fails to.
			if [[ $row = *'no figure'* ]]; then row=$(PORT=$((PORT + 50)) one "$program/$size" alone); fi
			echo "$row"
		done
	done
	[ "$VERBOSE" = 0 ] || sed 's/^/# /' "$TMP/servers"
}

# Runs the perftest servers of SCHEDULE, each on the next port, three at a time, so that the next
# ones have started when their clients come. A server that fails says why and is restarted for a
# client that retries. A server may restart more often than its client, because the client's retry
# may kill a server that is new already.
servers() {
	local test n=0
	for test in $SCHEDULE; do
		[ "$n" -lt 3 ] || wait -n || true
		server "${test%/*}" -R -F -d "$DEV_B" -p $((PORT + n)) -s "${test#*/}" -n "$(rounds "$test")" &
		n=$((n + 1))
	done
	wait
}

# server PROGRAM OPTIONS...: runs a server until it succeeds, at most four times.
server() {
	local out=$TMP/server.$BASHPID try
	for try in 1 2 3 4; do
		"$@" >"$out" 2>&1 && return
		echo "$* (try $try): $(last_line "$out")"
	done
}

# Runs the clients of these servers; prints a row as each ends.
clients() {
	local test sleeper=''
	for test in $SCHEDULE; do
		if [[ $test == ib_write_bw/* ]]; then
			wait $sleeper
			one "$test" &
			sleeper=$!
		else
			one "$test"
		fi
		PORT=$((PORT + 1))
	done
	wait $sleeper
}

# one PROGRAM/SIZE [HOW]: prints its row. HOW is the function that measures it.
one() {
	local program=${1%/*} size=${1#*/} unit=us
	[[ $program != *_bw ]] || unit=MiB/s
	measure "$program -R" "$size" "$unit" "${2:-client}" "$program" -s "$size" -n "$(rounds "$1")"
}

# client PROGRAM OPTIONS...: runs the client and prints its figure. Retries if the client was faster
# than its server.
client() {
	local program=$1 CLIENT_OUT=$TMP/client.$PORT try status
	shift
	for try in 1 2 3; do
		STARTED=$SERVERS wait_listen "$PORT" || return 1
		status=0
		timeout --foreground 20 "$program" -R -F -d "$DEV_A" -p "$PORT" "$@" "$IP4_B" >"$CLIENT_OUT" 2>&1 ||
			status=$?
		if [ "$status" = 0 ]; then
			perftest_figure "$program"
			return
		fi
		pkill -f -- "-d $DEV_B -p $PORT " || true
		too_early || break
	done
	exit_reason "$status" "$CLIENT_OUT"
	return 1
}

# alone PROGRAM OPTIONS...: the same with a server of its own.
alone() { perftest_pair "$@" && perftest_figure "$1"; }

# Prints the rows of two guests on an emulated network: guest 1 listens, guest 2 connects.
guests() {
	local family peer=10.77.0.1
	PAIR='two guests'
	NS_A=- NS_B=-
	link_add - riwarp0 "$TYPE" eth0
	for family in 4 6; do
		[ "$family" = 4 ] || peer=fd77::1
		PORT=$((PORT + 1))
		if [ "$GUEST" = 1 ]; then
			start - "$TMP/guest" timeout --foreground 60 rping -s -a "$peer" -p "$PORT" -C "$RPINGS" -V
			wait_listen "$PORT"
			: >"/mnt/out/listening$family"
			wait "$STARTED" || not_ok "rping -s, IPv$family" "$(last_line "$TMP/guest")"
		else
			eventually 60 test -e "/mnt/out/listening$family"
			measure "rping, IPv$family" "$RPINGS rounds" s stopwatch \
				timeout --foreground 60 rping -c -a "$peer" -p "$PORT" -C "$RPINGS" -V
		fi
	done
}

guest1() {
	load_modules riwarp siw
	guests &
	pairs
}

guest2() {
	load_modules riwarp
	guests
}

case ${1:-} in
servers | clients) "$1" ;;
*) "guest$GUEST" ;;
esac
finish
