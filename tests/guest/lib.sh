# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# What the guest scripts share: reporting, time limits, two ends to connect, and pairs of programs.
# Sourced by scripts that have said `set -eu`. Every wait in here is bounded.
#
# A script prints one line per case on its standard output:
#
#     ok NAME
#     not ok NAME: why
#     skip NAME: why
#
# Everything else goes to a log per case, shown with `# ` in front when the case fails. `finish`
# gives the script its exit status.
#
# Arguments NAME=VALUE, or environment: TYPE (link type under test: riwarp, riwarp_siw or siw), TOPOLOGY (netns, self,
# siw-server, siw-client), ONLY (a glob: run only the cases whose name matches), VERBOSE=1 (show every log).

for setting in "$@"; do
	case $setting in *=*) export "${setting?}" ;; esac
done
TYPE=${TYPE:-riwarp}
MODULE=${TYPE%%_*}
ONLY=${ONLY:-*}
VERBOSE=${VERBOSE:-0}
GUEST_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
VERBS_DIR=${VERBS_DIR:-$GUEST_DIR/build}
SCRIPT=$(basename "$0"); SCRIPT=${SCRIPT%.*}
TMP=$(mktemp -d "/tmp/$SCRIPT.XXXXXX")
PORT=${PORT:-7000}
FAILED=0
CASES=0
# Limits of time are for the stock kernel; the debug kernel is slower by about this factor. Its own tests
# of the module are not to run whenever a script loads that.
SLOW=1
if [ -d /sys/kernel/debug/kunit ]; then
	SLOW=4
	printf none >/sys/module/kunit/parameters/filter_glob
fi
export SLOW PATH=$GUEST_DIR:$PATH

# --- reporting ------------------------------------------------------------------------------------

ok() { printf 'ok %s\n' "$1"; }
skip() { printf 'skip %s: %s\n' "$1" "$2"; }
not_ok() { printf 'not ok %s: %s\n' "$1" "$2"; FAILED=$((FAILED + 1)); }

# Says why the running case cannot be run here; for use inside a case.
skip_case() { echo "$*"; exit 75; }

# Says what went wrong in the running case; for use inside a case.
die() { echo "$*"; exit 1; }

# try NAME SECONDS COMMAND...: runs a case (a function or a command) as a process group of its own,
# kills what is left of the group afterwards, and reports. Exit status 75 means skip.
# PORT is fresh in every case: PORT .. PORT+9 may be used.
try() {
	local name=$SCRIPT/$1 limit=$(($2 * SLOW)) log pid dog rc=0 begin=$SECONDS
	shift 2
	# shellcheck disable=SC2254
	case $name in $ONLY) ;; *) return 0 ;; esac
	CASES=$((CASES + 1))
	PORT=$((PORT + 10))
	log=$TMP/case-$CASES.log
	set -m
	( set -eu; before_case "${name#*/}"; "$@" ) >"$log" 2>&1 </dev/null &
	pid=$!
	( sleep "$limit"; group_report "$pid" >"$log.late"; kill -KILL -- "-$pid" ) 2>/dev/null </dev/null &
	dog=$!
	set +m
	wait "$pid" 2>/dev/null || rc=$?
	kill -KILL -- "-$dog" 2>/dev/null || true
	wait "$dog" 2>/dev/null || true
	kill -KILL -- "-$pid" 2>/dev/null || true
	[ $((SECONDS - begin)) -lt 10 ] || echo "# $name took $((SECONDS - begin)) s"
	if [ -e "$log.late" ]; then
		not_ok "$name" "not done after $limit s; last words: $(last_line "$log")"
	elif [ "$rc" = 0 ]; then
		ok "$name"
	elif [ "$rc" = 75 ]; then
		skip "$name" "$(last_line "$log")"
	else
		not_ok "$name" "$(last_line "$log")"
	fi
	if [ -e "$log.late" ] || { [ "$rc" != 0 ] && [ "$rc" != 75 ]; } || [ "$VERBOSE" = 1 ]; then
		tail -n 60 "$log" | sed 's/^/# /'
		[ ! -e "$log.late" ] || sed 's/^/# /' "$log.late"
	fi
	[ "$rc" = 0 ] || [ "$rc" = 75 ] || after_failure >/dev/null 2>&1 </dev/null || true
}

# before_case NAME: what a case needs, or it fails: for suites that ask for something.
before_case() { :; }

# What a failed case leaves behind is not to fail those after it: for suites that know what that may be.
after_failure() { :; }

# What the processes of a group are doing, and where they are in the kernel.
group_report() {
	local pid
	for pid in $(pgrep -g "$1"); do
		ps -o pid=,ppid=,stat=,args= -p "$pid"
		sed 's/^/    /' "/proc/$pid/stack"
	done 2>/dev/null
	ss -tnaoi 2>/dev/null | head -n 20
}

last_line() { grep -av '^[[:space:]]*$' "$1" | tail -n 1 | cut -c1-200; }

# relay SECONDS PROGRAM...: passes on the ok/not ok/skip lines of a test program that reports by itself,
# with the script's name in front, and counts them. A program that ends badly without having said
# `not ok`, that says nothing, or that is not done in time is a failure. RELAY_NAME names it.
relay() {
	local limit=$(($1 * SLOW)) out=$TMP/relay.log rc=0 bad good name
	shift
	name=$SCRIPT/${RELAY_NAME:-$(basename "$1")}
	# shellcheck disable=SC2254
	case $name in $ONLY) ;; *) return 0 ;; esac
	PORT=$((PORT + 10))
	PORT=$PORT timeout -k 2 "$limit" "$@" >"$out" 2>"$out.err" </dev/null || rc=$?
	sed -n -E "s,^(ok|not ok|skip) ,&$SCRIPT/,p" "$out"
	bad=$(grep -c '^not ok ' "$out" || true)
	good=$(grep -c -E '^(ok|skip) ' "$out" || true)
	FAILED=$((FAILED + bad))
	if [ "$rc" = 124 ] || [ "$rc" = 137 ]; then
		not_ok "$name" "not done after $limit s"
	elif [ "$rc" != 0 ] && [ "$bad" = 0 ]; then
		not_ok "$name" "exit status $rc: $(last_line "$out.err")"
	elif [ "$rc" = 0 ] && [ "$good" = 0 ]; then
		not_ok "$name" "reported nothing"
	elif [ "$bad" = 0 ]; then
		[ "$VERBOSE" = 1 ] || return 0
	fi
	{ grep -v -E '^(ok|not ok|skip) ' "$out"; cat "$out.err"; } | tail -n 60 | sed 's/^/# /'
}

# Ends a script: takes down what it set up and gives the exit status.
finish() {
	ends_down
	rm -rf "$TMP"
	exit $((FAILED > 0))
}

# --- waiting --------------------------------------------------------------------------------------

# A look costs less than the process that `sleep` would be, so waits are these.
mkfifo "$TMP/nap"
exec {NAP}<>"$TMP/nap"
nap() { read -r -t "$1" -u "$NAP" || true; }

# eventually SECONDS COMMAND...: repeats a command until it succeeds.
eventually() {
	local end=$((SECONDS + $1 * SLOW))
	shift
	until "$@" >/dev/null 2>&1; do
		[ "$SECONDS" -lt "$end" ] || return 1
		nap 0.05
	done
}

# wait_listen PORT [SECONDS]: waits until something in the network namespace of the program STARTED
# listens there.
wait_listen() {
	local text entry end=$((SECONDS + ${2:-20} * SLOW)) table
	entry=$(printf ':%04X [0-9A-F]*:0000 0A' "$1")
	while [ "$SECONDS" -lt "$end" ]; do
		for table in tcp tcp6; do
			{ read -r -d "" text <"/proc/$STARTED/net/$table"; } 2>/dev/null || true
			[[ ! $text =~ $entry ]] || return 0
		done
		kill -0 "$STARTED" 2>/dev/null || { echo "the server has ended"; return 1; }
		nap 0.02
	done
	echo "nothing listens on port $1"
	return 1
}

# gone PID: whether that process has ended.
gone() { ! kill -0 "$1" 2>/dev/null; }

# nothing_left SECONDS KIND...: waits until there are no RDMA objects of these kinds but the kernel's own.
nothing_left() {
	local limit=$1
	shift
	eventually "$limit" none_of "$@" || die "left: $(objects "$@")"
}

none_of() { [ -z "$(objects "$@")" ]; }

# objects KIND...: those of processes.
objects() {
	local kind list
	for kind; do
		list=$(rdma resource show "$kind") || { echo "no list of $kind"; continue; }
		grep -v 'comm \[' <<<"$list" | grep . || true
	done
}

# test_module NAME: loads a module of the tests.
test_module() { [ -d "/sys/module/$1" ] || insmod "$VERBS_DIR/$1-$(uname -r).ko"; }

# --- links and ends -------------------------------------------------------------------------------
#
# A test connects an end A (the client) to an end B (the server). For X in A, B:
# NS_X the namespace (`-` for the initial one), DEV_X the RDMA device, NET_X the netdev,
# IP4_X and IP6_X its addresses, TYPE_X the link type.

ENDS_COUNT=0
NETNS_MADE=()
LINKS_MADE=()
NETDEVS_MADE=()
ADDRESSES_MADE=()

# in_ns NETNS COMMAND...
in_ns() {
	local where=$1
	shift
	if [ "$where" = - ]; then "$@"; else ip netns exec "$where" "$@"; fi
}

# ip_ns NETNS ARGUMENTS OF ip...
ip_ns() {
	local where=$1
	shift
	if [ "$where" = - ]; then ip "$@"; else ip -n "$where" "$@"; fi
}

netns_add() {
	ip netns add "$1"
	NETNS_MADE+=("$1")
	ip -n "$1" link set lo up
}

netns_del() {
	local i
	ip netns del "$1"
	for i in "${!NETNS_MADE[@]}"; do
		[ "${NETNS_MADE[i]}" != "$1" ] || unset 'NETNS_MADE[i]'
	done
}

link_state_is() { in_ns "$1" rdma link show "$2/1" 2>/dev/null | grep -q "state $3"; }
link_exists() { in_ns "$1" rdma link show "$2/1" >/dev/null 2>&1; }
link_is_gone() { ! link_exists "$@"; }

# link_add NETNS NAME TYPE NETDEV: makes a device and waits until it is active.
link_add() {
	in_ns "$1" rdma link add "$2" type "$3" netdev "$4" || return 1
	LINKS_MADE+=("$1 $2")
	eventually 10 link_state_is "$1" "$2" ACTIVE ||
		{ echo "device $2 did not become active"; return 1; }
}

# link_del NETNS NAME
link_del() {
	local i
	in_ns "$1" rdma link del "$2" || return 1
	for i in "${!LINKS_MADE[@]}"; do
		[ "${LINKS_MADE[i]}" != "$1 $2" ] || unset 'LINKS_MADE[i]'
	done
}

# address_add NETNS NETDEV ADDRESS: without duplicate address detection, so usable at once.
address_add() {
	case $3 in
	*:*) ip_ns "$1" addr add "$3" dev "$2" nodad ;;
	*) ip_ns "$1" addr add "$3" dev "$2" ;;
	esac
	ADDRESSES_MADE+=("$1 $2 $3")
}

# veth_ends NETNS_A NETNS_B MTU: two namespaces (or the initial one) joined by a veth pair. Each end knows
# the other's link-layer address: rdma_resolve_addr takes two seconds where the kernel has to ask first.
veth_ends() {
	local n=$ENDS_COUNT mac_a mac_b a=() b=()
	NS_A=$1 NS_B=$2 NET_A=va$n NET_B=vb$n
	IP4_A=10.71.$n.1 IP4_B=10.71.$n.2 IP6_A=fd71:$n::1 IP6_B=fd71:$n::2
	[ "$NS_A" = - ] || { netns_add "$NS_A"; a=(netns "$NS_A"); }
	[ "$NS_B" = - ] || { netns_add "$NS_B"; b=(netns "$NS_B"); }
	printf -v mac_a '02:71:00:00:%02x:0a' "$n"
	printf -v mac_b '02:71:00:00:%02x:0b' "$n"
	ip link add "$NET_A" address "$mac_a" "${a[@]}" type veth peer name "$NET_B" address "$mac_b" "${b[@]}"
	NETDEVS_MADE+=("$NET_A")
	veth_end "$NS_A" "$NET_A" "$3" "$IP4_A" "$IP6_A" "$mac_b" "$IP4_B" "$IP6_B"
	veth_end "$NS_B" "$NET_B" "$3" "$IP4_B" "$IP6_B" "$mac_a" "$IP4_A" "$IP6_A"
}

# veth_end NETNS NETDEV MTU IP4 IP6 MAC_OF_PEER IP4_OF_PEER IP6_OF_PEER: in one process, since each takes
# an emulated processor a tenth of a second.
veth_end() {
	ip_ns "$1" -batch - <<-END
		link set $2 mtu $3 up
		addr add $4/24 dev $2
		addr add $5/64 dev $2 nodad
		neigh replace $7 lladdr $6 dev $2 nud permanent
		neigh replace $8 lladdr $6 dev $2 nud permanent
	END
}

# ends_mtu MTU: from now on, of both ends.
ends_mtu() {
	ip_ns "$NS_A" link set "$NET_A" mtu "$1"
	ip_ns "$NS_B" link set "$NET_B" mtu "$1"
}

# neighbour NETNS NETDEV ITS_NETNS ITS_NETDEV ADDRESS...
neighbour() {
	local ns=$1 dev=$2 mac address
	mac=$(in_ns "$3" cat "/sys/class/net/$4/address")
	shift 4
	for address; do ip_ns "$ns" neigh replace "$address" lladdr "$mac" dev "$dev" nud permanent; done
}

# load_modules MODULE...: also what user space needs, which udev would load on a whole system.
load_modules() {
	modprobe -a ib_uverbs rdma_ucm "$@" || { echo "cannot load $*"; return 1; }
}

# ends_up [TOPOLOGY [MTU]]: makes the two ends.
#   netns       two namespaces, each with a device of TYPE on its end of a veth pair
#   self        one device of TYPE in the initial namespace, both ends on it; what it sends to its
#               own address goes through lo, whose MTU is set (65536)
#   siw-server  TYPE in a namespace as A, siw in the initial namespace as B
#   siw-client  siw in the initial namespace as A, TYPE in a namespace as B
# Towards siw, riwarp is set as the README says.
ends_up() {
	local topology=${1:-${TOPOLOGY:-netns}} mtu=${2:-1500} n
	ENDS_COUNT=$((ENDS_COUNT + 1))
	n=$ENDS_COUNT
	TYPE_A=$TYPE TYPE_B=$TYPE
	load_modules "$MODULE" || return 1
	case $topology in
	netns) veth_ends "ria$n" "rib$n" "$mtu" ;;
	siw-server)
		load_modules siw || return 1
		veth_ends "ria$n" - "$mtu"
		TYPE_B=siw
		;;
	siw-client)
		load_modules siw || return 1
		veth_ends - "rib$n" "$mtu"
		TYPE_A=siw
		;;
	self)
		NS_A=- NS_B=- NET_A=va$n NET_B=va$n
		IP4_A=10.71.$n.1 IP6_A=fd71:$n::1
		IP4_B=$IP4_A IP6_B=$IP6_A
		ip link add "$NET_A" type veth peer name "vb$n"
		NETDEVS_MADE+=("$NET_A")
		ip link set "$NET_A" up
		ip link set "vb$n" up
		address_add - "$NET_A" "$IP4_A/24"
		address_add - "$NET_A" "$IP6_A/64"
		ip link set lo mtu "${2:-65536}"
		DEV_A=${TYPE}a$n DEV_B=$DEV_A
		link_add - "$DEV_A" "$TYPE" "$NET_A"
		return
		;;
	*) echo "no such topology: $topology"; return 1 ;;
	esac
	DEV_A=${TYPE_A}a$n DEV_B=${TYPE_B}b$n
	link_add "$NS_A" "$DEV_A" "$TYPE_A" "$NET_A"
	link_add "$NS_B" "$DEV_B" "$TYPE_B" "$NET_B"
	case $TYPE/$topology in
	riwarp*/siw-server) setting "$NS_A" "$DEV_A" peer_to_peer 0 ;;
	riwarp*/siw-client) setting "$NS_B" "$DEV_B" eager_responder 1 ;;
	esac
}

# setting NETNS DEVICE NAME VALUE
setting() { in_ns "$1" sh -c "echo $4 >/sys/class/infiniband/$2/$3"; }

# Takes down what ends_up and its parts made. Says nothing about what is gone already.
ends_down() {
	local x
	for x in "${LINKS_MADE[@]}"; do
		# shellcheck disable=SC2086
		set -- $x
		in_ns "$1" rdma link del "$2" 2>/dev/null || true
	done
	for x in "${ADDRESSES_MADE[@]}"; do
		# shellcheck disable=SC2086
		set -- $x
		ip_ns "$1" addr del "$3" dev "$2" 2>/dev/null || true
	done
	for x in "${NETDEVS_MADE[@]}"; do ip link del "$x" 2>/dev/null || true; done
	for x in "${NETNS_MADE[@]}"; do ip netns del "$x" 2>/dev/null || true; done
	LINKS_MADE=() ADDRESSES_MADE=() NETDEVS_MADE=() NETNS_MADE=()
}

# --- pairs of programs ----------------------------------------------------------------------------

# start NETNS LOG COMMAND...: starts a program in the background; STARTED is its process id.
start() {
	local where=$1 log=$2
	shift 2
	(
		if [ "$where" = - ]; then exec "$@"; else exec ip netns exec "$where" "$@"; fi
	) >"$log" 2>&1 </dev/null &
	STARTED=$!
}

# pair SECONDS SERVER... -- CLIENT...: runs a server at end B that listens on PORT and a client at
# end A. Both must succeed. Their output stays in SERVER_OUT and CLIENT_OUT.
pair() {
	local limit=$1 server=()
	shift
	while [ "$1" != -- ]; do server+=("$1"); shift; done
	shift
	serve "$limit" "${server[@]}"
	call "$limit" "$@"
}

# serve SECONDS SERVER...: starts the server of a pair, SERVER_PID.
serve() {
	local limit=$1
	shift
	SERVER_OUT=$TMP/server.$BASHPID.$PORT
	start "$NS_B" "$SERVER_OUT" within "$limit" "$@"
	SERVER_PID=$STARTED
}

# call SECONDS CLIENT...: runs the client of a pair as soon as the server listens, and waits for both.
call() {
	local limit=$1 rc=0
	shift
	CLIENT_OUT=$TMP/client.$BASHPID.$PORT STARTED=$SERVER_PID
	if ! wait_listen "$PORT"; then
		kill "$SERVER_PID" 2>/dev/null || true
		echo "the server did not listen: $(last_line "$SERVER_OUT")"
		return 1
	fi
	in_ns "$NS_A" within "$limit" "$@" >"$CLIENT_OUT" 2>&1 </dev/null || rc=$?
	if [ "$rc" != 0 ]; then
		kill "$SERVER_PID" 2>/dev/null || true
		wait "$SERVER_PID" 2>/dev/null || true
		sed 's/^/server: /' "$SERVER_OUT"
		sed 's/^/client: /' "$CLIENT_OUT"
		echo "client $1: $(exit_reason "$rc" "$CLIENT_OUT")"
		return 1
	fi
	wait "$SERVER_PID" || rc=$?
	if [ "$rc" != 0 ]; then
		sed 's/^/client: /' "$CLIENT_OUT"
		sed 's/^/server: /' "$SERVER_OUT"
		echo "server of $1: $(exit_reason "$rc" "$SERVER_OUT")"
		return 1
	fi
}

exit_reason() {
	case $1 in
	124 | 137) echo "not done in time, last words: $(last_line "$2")" ;;
	*) echo "exit status $1: $(last_line "$2")" ;;
	esac
}

# rping_pair 4|6 COUNT [OPTIONS of both ends...]
rping_pair() {
	local family=$1 count=$2 address
	shift 2
	if [ "$family" = 4 ]; then address=$IP4_B; else address=$IP6_B; fi
	pair 60 rping -s -a "$address" -p "$PORT" -C "$count" "$@" -- \
		rping -c -a "$address" -p "$PORT" -C "$count" "$@"
}

client_server() {
	pair 30 rdma_server -s "$IP4_B" -p "$PORT" -- rdma_client -s "$IP4_B" -p "$PORT"
}

# perftest_pair TOOL [OPTIONS of both ends...]: one run of a perftest program over rdma_cm.
#
# perftest makes a first connection to agree on the second, and its server listens anew for that one.
# Nothing keeps the client from being faster; it is refused then, and crashes in its own second try.
# That, and nothing else, is repeated.
perftest_pair() {
	local tool=$1 try
	shift
	for try in 1 2 3; do
		perftest_serve "$tool" "$@"
		if perftest_call "$tool" "$@"; then return 0; fi
		too_early || return 1
		echo "the client was too early for the server (try $try)"
		PORT=$((PORT + 1))
	done
	return 1
}

# perftest_serve TOOL [OPTIONS of both ends...]: the server of perftest_pair; once for each call.
perftest_serve() {
	local tool=$1
	shift
	serve "${PERFTEST_LIMIT:-60}" "$tool" -R -F -d "$DEV_B" -p "$PORT" "$@"
}

# perftest_call TOOL [OPTIONS of both ends...]: its client.
perftest_call() {
	local tool=$1
	shift
	call "${PERFTEST_LIMIT:-60}" "$tool" -R -F -d "$DEV_A" -p "$PORT" "$@" "$IP4_B"
}

# Whether the client that failed last was a perftest program faster than its server, which listens twice:
# event 8 is RDMA_CM_EVENT_REJECTED.
too_early() { grep -qE 'Failed to connect RDMA CM events|Unexpected CM event bl blka 8$' "$CLIENT_OUT"; }

# The rows of figures in a perftest program's output: lines that start with a message size.
perftest_rows() { grep -E '^ *[0-9]+ +[0-9]+ +' "$CLIENT_OUT" || true; }

# perftest_table ROWS: that there are so many of them, none of them zero or absurd. (Where the bandwidth of small
# messages is rounded to nothing the rate is not, and the other way round.) Where others keep the processors busy
# perftest cannot find out what its clock counts; it says so, and then its figures are nothing but that. The standard
# deviation of latencies, the seventh figure, is none if one was 46 ms off: perftest squares that in an int.
perftest_table() {
	local rows
	rows=$(perftest_rows | wc -l)
	[ "$rows" = "$1" ] || die "$rows rows instead of $1"
	if grep 'Correlation coefficient' "$CLIENT_OUT"; then return 0; fi
	perftest_rows | awk 'NF > 7 { $7 = 0 } !($4 > 0 || $5 > 0) || /inf|nan/ { bad = 1 } END { exit bad }' || die "figures: $(perftest_rows)"
}

# perftest_checked ROWS TOOL [OPTIONS of both ends...]: perftest_pair, with such a table.
perftest_checked() {
	perftest_pair "${@:2}"
	perftest_table "$1"
}

# perftest_figure TOOL: its first figure in CLIENT_OUT, which is the average bandwidth in MiB/s or the
# typical (median) latency in microseconds.
perftest_figure() {
	local column=3 row
	case $1 in *_lat) column=4 ;; esac
	while read -r -a row; do
		[[ ${row[*]::2} =~ ^[0-9]+\ [0-9]+$ ]] || continue
		echo "${row[column]:-}"
		return
	done <"$CLIENT_OUT"
}
