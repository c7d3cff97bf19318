#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What tests/demo shows, measured in a guest. Prints one line per figure, with tabs between:
#
#     row PAIR PROGRAM SIZE FIGURE UNIT ok
#     row PAIR PROGRAM SIZE - - FAILED: why
#
# To be run with qemu/run --guests 2 --out DIR: guest 1 has all ends but one, guest 2 calls it. TYPE is the
# link type shown.
#
# An emulated processor takes half a second to start a perftest program: the next servers start while a
# client still runs. Two clients at a time would only measure each other: all these programs spin. But those
# of ib_write_bw, and their servers, sleep for a second before they do: others run meanwhile.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

PROGRAMS='ib_write_bw ib_read_bw ib_send_bw ib_send_lat ib_write_lat'
SIZES='64 4096 65536 1048576'
# Each round is a Read and a Write and their Sends, compared at the end.
RPINGS=30
# Two short ones for each of ib_write_bw.
SCHEDULE='ib_write_bw/64 ib_read_bw/64 ib_read_bw/4096 ib_write_bw/4096 ib_read_bw/65536 ib_send_bw/64
ib_write_bw/65536 ib_send_bw/4096 ib_send_bw/65536 ib_write_bw/1048576 ib_send_lat/64 ib_read_bw/1048576
ib_send_bw/1048576 ib_send_lat/4096 ib_send_lat/65536 ib_send_lat/1048576 ib_write_lat/64 ib_write_lat/4096
ib_write_lat/65536 ib_write_lat/1048576'

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

# rounds PROGRAM/SIZE: few, since an emulated processor is slow; enough for a figure.
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

# One pair after the other; the next two ends come up meanwhile.
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
		# All this is that process's now.
		LINKS_MADE=() ADDRESSES_MADE=() NETDEVS_MADE=() NETNS_MADE=()
		PORT=$((PORT + 200))
	done
	wait "$measured"
}

# measure_pair yes|WHY: the rows of the pair whose ends are up, or why they are not.
measure_pair() {
	if [ "$1" = yes ]; then
		rows
	else
		row "$PAIR" set-up - - - "$1"
	fi
	ends_down
}

# The rows of one pair, between the ends that are up.
rows() {
	local family program size row
	local -A found=()
	export PAIR DEV_A DEV_B IP4_B PORT SERVERS
	# Those that are needed first start while rping runs.
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
			# perftest measures the clock of the processor for each figure, and now and then finds none.
			if [[ $row = *'no figure'* ]]; then row=$(PORT=$((PORT + 50)) one "$program/$size" alone); fi
			echo "$row"
		done
	done
	[ "$VERBOSE" = 0 ] || sed 's/^/# /' "$TMP/servers"
}

# One perftest server after the other, each on the next port; those that are needed next have started.
# One that fails says why and is started anew, for a client that tries again: more often than the client
# does, since that ends a server which may be a new one already.
servers() {
	local test n=0
	for test in $SCHEDULE; do
		[ "$n" -lt 3 ] || wait -n || true
		server "${test%/*}" -R -F -d "$DEV_B" -p $((PORT + n)) -s "${test#*/}" -n "$(rounds "$test")" &
		n=$((n + 1))
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

# The clients of these servers: a row each, as they end.
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

# one PROGRAM/SIZE [HOW]: its row. HOW is the function that measures it.
one() {
	local program=${1%/*} size=${1#*/} unit=us
	[[ $program != *_bw ]] || unit=MiB/s
	measure "$program -R" "$size" "$unit" "${2:-client}" "$program" -s "$size" -n "$(rounds "$1")"
}

# client PROGRAM OPTIONS...: prints its figure. One that was too early for its server is tried again.
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

# alone PROGRAM OPTIONS...: prints its figure, with a server of its own.
alone() { perftest_pair "$@" && perftest_figure "$1"; }

# The rows of two guests, joined by an emulated network: guest 1 listens, guest 2 calls.
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
