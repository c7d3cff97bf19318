# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Shared by the guest scripts: reporting, time limits, two ends to connect, and pairs of programs.
# Scripts source it after `set -eu`. Every wait in here is bounded.
#
# A script prints one line per case on its standard output:
#
#     ok NAME
#     not ok NAME: why
#     skip NAME: why
#
# Everything else goes to a log per case, which is printed with `# ` in front if the case fails.
# `finish` exits with the script's status.
#
# Arguments NAME=VALUE, or environment: TYPE (link type under test: riwarp, riwarp_siw, riwarp_ib or
# siw), TOPOLOGY (netns, self, siw-server, siw-client), LINK (veth or tap: see veth_ends), ONLY (a
# glob: run only the cases whose name matches), VERBOSE=1 (show every log), STRICT=1 (each device is
# strict; `finish` prints what was found, docs/strict.md), RULES (for the file `inject` of each device;
# `finish` prints how often they have hit, docs/inject.md), TLS=psk or x509 (each riwarp device
# demands TLS, docs/tls.md).

for setting in "$@"; do
	case $setting in *=*) export "${setting?}" ;; esac
done
TYPE=${TYPE:-riwarp}
MODULE=${TYPE%%_*}
ONLY=${ONLY:-*}
VERBOSE=${VERBOSE:-0}
GUEST_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case $(uname -m) in
aarch64) VERBS_DIR=${VERBS_DIR:-$GUEST_DIR/build/arm64} ;;
*) VERBS_DIR=${VERBS_DIR:-$GUEST_DIR/build} ;;
esac
SCRIPT=$(basename "$0"); SCRIPT=${SCRIPT%.*}
TMP=$(mktemp -d "/tmp/$SCRIPT.XXXXXX")
PORT=${PORT:-7000}
FAILED=0
CASES=0
# Time limits are for the stock kernel; SLOW is about the factor by which the debug kernel is
# slower, and one with PREEMPT_RT, which has a thread for each interrupt and softirq. KUnit must not
# run the module's suites in the debug kernel whenever a script loads the module.
SLOW=1
[[ $(uname -v) != *PREEMPT_RT* ]] || SLOW=2
if [ -d /sys/kernel/debug/kunit ]; then
	SLOW=4
	printf none >/sys/module/kunit/parameters/filter_glob
fi
export SLOW PATH=$GUEST_DIR:$PATH
# shellcheck source=tests/guest/kcsan.sh
. "$GUEST_DIR/kcsan.sh"
# shellcheck source=tests/guest/secure.sh
. "$GUEST_DIR/secure.sh"

# --- reporting ------------------------------------------------------------------------------------

ok() { printf 'ok %s\n' "$1"; }
skip() { printf 'skip %s: %s\n' "$1" "$2"; }
not_ok() { printf 'not ok %s: %s\n' "$1" "$2"; FAILED=$((FAILED + 1)); }

# skip_case WHY: skips the running case; for use inside a case.
skip_case() { echo "$*"; exit 75; }

# die WHY: fails the running case; for use inside a case.
die() { echo "$*"; exit 1; }

# try NAME SECONDS COMMAND...: runs a case (a function or a command) in a process group of its own,
# kills what is left of the group afterwards, and reports. Exit status 75 means skip. PORT is new in
# every case, which may use PORT .. PORT+9.
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
		not_ok "$name" "not done after $limit s; last line: $(last_line "$log")"
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

# before_case NAME: fails a case whose preconditions do not hold; suites may define it.
before_case() { :; }

# after_failure: cleans up after a failed case, so that later cases do not fail; suites may define
# it.
after_failure() { :; }

# group_report PGID: prints what the processes of a group do, and where in the kernel they are.
group_report() {
	local pid
	for pid in $(pgrep -g "$1"); do
		ps -o pid=,ppid=,stat=,args= -p "$pid"
		sed 's/^/    /' "/proc/$pid/stack"
	done 2>/dev/null
	ss -tnaoi 2>/dev/null | head -n 20
}

last_line() { grep -av '^[[:space:]]*$' "$1" | tail -n 1 | cut -c1-200; }

# relay SECONDS PROGRAM...: runs a test program that reports by itself; prints its ok/not ok/skip
# lines with the script's name in front, and counts them. A program fails if its status is bad and
# it printed no `not ok`, if it reports nothing, or if it exceeds the time. RELAY_NAME is its name.
relay() {
	local limit=$(($1 * SLOW)) out=$TMP/relay.log rc=0 bad good name pid
	shift
	name=$SCRIPT/${RELAY_NAME:-$(basename "$1")}
	# shellcheck disable=SC2254
	case $name in $ONLY) ;; *) return 0 ;; esac
	PORT=$((PORT + 10))
	: >"$out"
	PORT=$PORT timeout -k 2 "$limit" "$@" >"$out" 2>"$out.err" </dev/null &
	pid=$!
	# As they come: whoever waits for the first failure need not wait for the last case.
	tail -n +1 -s 0.1 --pid "$pid" -f "$out" | sed -u -n -E "s,^(ok|not ok|skip) ,&$SCRIPT/,p"
	wait "$pid" || rc=$?
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

# finish: takes down what the script set up, and exits with its status.
finish() {
	[ -z "${STRICT:-}" ] || dmesg | sed -n 's/.*: strict rule/# strict rule/p'
	[ -z "${RULES:-}" ] || sed 's/^/# /' /sys/class/infiniband/*/inject
	ends_down
	kcsan_watched || not_ok "$SCRIPT/kcsan" 'nothing of the module was watched'
	rm -rf "$TMP"
	exit $((FAILED > 0))
}

# --- waiting --------------------------------------------------------------------------------------

# `nap` waits without starting a process, since `sleep` costs more than the repeated check.
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

# took COMMAND...: sets TOOK to its time in ms.
took() {
	local begin=${EPOCHREALTIME/./}
	"$@"
	TOOK=$(((${EPOCHREALTIME/./} - begin) / 1000))
}

# wait_listen PORT [SECONDS]: waits until a socket listens on PORT in the network namespace of the
# program STARTED.
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

# hold_port PORT: starts a TCP program in the initial namespace that listens on PORT.
hold_port() {
	start - "$TMP/hold_port" python3 -c 'import signal, socket, sys
server = socket.create_server(("", int(sys.argv[1])))
signal.pause()' "$1"
	wait_listen "$1"
}

# gone PID: succeeds if the process has ended.
gone() { ! kill -0 "$1" 2>/dev/null; }

# nothing_left SECONDS KIND...: waits until the only RDMA objects of these kinds are the kernel's.
nothing_left() {
	local limit=$1
	shift
	eventually "$limit" none_of "$@" || die "left: $(objects "$@")"
}

# no_qp: succeeds if end A's device has no queue pair.
no_qp() { [ -z "$(rdma resource show qp link "$DEV_A")" ]; }

# counter DEVICE NAME: prints one of a device's counters. The device renews them every 10 ms, and
# only the initial namespace has them.
counter() {
	nap 0.05
	cat "/sys/class/infiniband/$1/ports/1/hw_counters/$2"
}

none_of() { [ -z "$(objects "$@")" ]; }

# objects KIND...: prints the RDMA objects that processes own.
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
TAPS_MADE=()

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
	[ -z "${STRICT:-}" ] || echo 1 >"/sys/class/infiniband/$2/strict"
	[ -z "${RULES:-}" ] || echo "$RULES" >"/sys/class/infiniband/$2/inject"
	[ -z "${TLS:-}" ] || [ "$3" = siw ] || secure_link "$1" "$2"
}

# link_del NETNS NAME
link_del() {
	local i
	in_ns "$1" rdma link del "$2" || return 1
	for i in "${!LINKS_MADE[@]}"; do
		[ "${LINKS_MADE[i]}" != "$1 $2" ] || unset 'LINKS_MADE[i]'
	done
}

# address_add NETNS NETDEV ADDRESS: adds an address without duplicate address detection, so that it
# is usable at once.
address_add() {
	case $3 in
	*:*) ip_ns "$1" addr add "$3" dev "$2" nodad ;;
	*) ip_ns "$1" addr add "$3" dev "$2" ;;
	esac
	ADDRESSES_MADE+=("$1 $2 $3")
}

# veth_ends NETNS_A NETNS_B MTU: joins two namespaces (or the initial one) by a veth pair, or, with
# LINK=tap, by two TAP devices and a program that gives frames many shapes (tests/hostile/taps.rs).
# Each end knows the other's link-layer address, because rdma_resolve_addr takes two seconds if the
# kernel has to ask for it.
veth_ends() {
	local n=$ENDS_COUNT mac_a mac_b a=() b=()
	NS_A=$1 NS_B=$2 NET_A=va$n NET_B=vb$n
	IP4_A=10.71.$n.1 IP4_B=10.71.$n.2 IP6_A=fd71:$n::1 IP6_B=fd71:$n::2
	[ "$NS_A" = - ] || { netns_add "$NS_A"; a=(netns "$NS_A"); }
	[ "$NS_B" = - ] || { netns_add "$NS_B"; b=(netns "$NS_B"); }
	printf -v mac_a '02:71:00:00:%02x:0a' "$n"
	printf -v mac_b '02:71:00:00:%02x:0b' "$n"
	if [ "${LINK:-veth}" = tap ]; then
		tap_pair "$mac_a" "$mac_b" || return 1
	else
		ip link add "$NET_A" address "$mac_a" "${a[@]}" type veth peer name "$NET_B" address "$mac_b" "${b[@]}"
		NETDEVS_MADE+=("$NET_A")
	fi
	veth_end "$NS_A" "$NET_A" "$3" "$IP4_A" "$IP6_A" "$mac_b" "$IP4_B" "$IP6_B"
	veth_end "$NS_B" "$NET_B" "$3" "$IP4_B" "$IP6_B" "$mac_a" "$IP4_A" "$IP6_A"
}

# tap_pair MAC_A MAC_B: makes the two TAP devices NET_A and NET_B. What the program has written is
# in $TMP/taps.N after ends_down, where N was ENDS_COUNT. TAPS_SEED repeats a run's random numbers.
# GRO may keep packets for some milliseconds, so that it merges those of several frames.
tap_pair() {
	local log=$TMP/taps.$ENDS_COUNT seed=${TAPS_SEED:-$RANDOM}
	modprobe tun || { echo 'no tun'; return 1; }
	test_module shapes || return 1
	echo "# TAPS_SEED=$seed"
	"$VERBS_DIR/taps" "$seed" "$NS_A" "$NET_A" "$NS_B" "$NET_B" >"$log" 2>&1 </dev/null &
	TAPS_MADE+=($!)
	eventually 20 grep -q ready "$log" || { echo "no TAP devices: $(last_line "$log")"; return 1; }
	tap_end "$NS_A" "$NET_A" "$1"
	tap_end "$NS_B" "$NET_B" "$2"
}

# tap_end NETNS NETDEV MAC
tap_end() {
	ip_ns "$1" link set "$2" address "$3"
	in_ns "$1" sh -c "echo 5000000 >/sys/class/net/$2/gro_flush_timeout"
}

# taps_did: prints, after ends_down, what was written, and in which shapes it arrived at sockets of
# the kernel's own.
taps_did() {
	sed 's/^/# taps: /' "$TMP"/taps.*
	(cd /sys/module/shapes/parameters && grep -H . -- *) | sed 's/^/# shapes: /'
}

# shapes_arrived: fails unless octets have arrived at sockets of the kernel's own in each shape. A
# frag_list whose members have fragments needs long segments that GRO merges, which are rare.
shapes_arrived() {
	local shape
	for shape in /sys/module/shapes/parameters/*; do
		[ "$(<"$shape")" != 0 ] || [ "${shape##*/}" = frag_list_of_frags ] || die "no ${shape##*/}"
	done
}

# veth_end NETNS NETDEV MTU IP4 IP6 MAC_OF_PEER IP4_OF_PEER IP6_OF_PEER: sets up one end, in one
# process: an emulated processor needs a tenth of a second to start one.
veth_end() {
	ip_ns "$1" -batch - <<-END
		link set $2 mtu $3 up
		addr add $4/24 dev $2
		addr add $5/64 dev $2 nodad
		neigh replace $7 lladdr $6 dev $2 nud permanent
		neigh replace $8 lladdr $6 dev $2 nud permanent
	END
}

# ends_mtu MTU: sets the MTU of both ends.
ends_mtu() {
	ip_ns "$NS_A" link set "$NET_A" mtu "$1"
	ip_ns "$NS_B" link set "$NET_B" mtu "$1"
}

# neighbour NETNS NETDEV ITS_NETNS ITS_NETDEV ADDRESS...: adds the peer's addresses to the neighbour
# table.
neighbour() {
	local ns=$1 dev=$2 mac address
	mac=$(in_ns "$3" cat "/sys/class/net/$4/address")
	shift 4
	for address; do ip_ns "$ns" neigh replace "$address" lladdr "$mac" dev "$dev" nud permanent; done
}

# load_modules MODULE...: loads them, and those for user space, which udev would load on a complete
# system.
load_modules() {
	modprobe -a ib_uverbs rdma_ucm "$@" || { echo "cannot load $*"; return 1; }
}

# ends_up [TOPOLOGY [MTU]]: makes the two ends.
#   netns       two namespaces, each with a device of TYPE on its end of a veth pair
#   self        one device of TYPE in the initial namespace, both ends on it; traffic to its own
#               address goes through lo, whose MTU is set (65536)
#   initial     two devices of TYPE in the initial namespace, for consumers that know no other
#   outside     the same, but B's end is in the initial namespace, which alone has counters
#   siw-server  TYPE in a namespace as A, siw in the initial namespace as B
#   siw-client  siw in the initial namespace as A, TYPE in a namespace as B
# Towards siw, riwarp has the settings that docs/features.md recommends.
ends_up() {
	local topology=${1:-${TOPOLOGY:-netns}} mtu=${2:-1500} n
	ENDS_COUNT=$((ENDS_COUNT + 1))
	n=$ENDS_COUNT
	TYPE_A=$TYPE TYPE_B=$TYPE
	load_modules "$MODULE" || return 1
	case $topology in
	netns) veth_ends "ria$n" "rib$n" "$mtu" ;;
	outside) veth_ends "ria$n" - "$mtu" ;;
	initial)
		veth_ends - - "$mtu"
		# A listener on the wildcard address answers through its own interface, so its packets
		# arrive from outside with an address of this machine.
		echo 1 >"/proc/sys/net/ipv4/conf/$NET_A/accept_local"
		;;
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

# setting NETNS DEVICE NAME VALUE: writes a setting of a device.
setting() { in_ns "$1" sh -c "echo $4 >/sys/class/infiniband/$2/$3"; }

# ends_down: takes down what ends_up and its parts made; ignores what is gone already.
ends_down() {
	local x
	tlshd_end
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
	for x in "${TAPS_MADE[@]}"; do kill "$x" 2>/dev/null || true; done
	for x in "${TAPS_MADE[@]}"; do wait "$x" 2>/dev/null || true; done
	for x in "${NETNS_MADE[@]}"; do ip netns del "$x" 2>/dev/null || true; done
	LINKS_MADE=() ADDRESSES_MADE=() NETDEVS_MADE=() NETNS_MADE=() TAPS_MADE=()
}

# unloads: takes the ends down and unloads the module; its threads must end.
unloads() {
	ends_down
	within 30 rmmod "$MODULE" || die "rmmod: $?"
	# A kworker that is named after its last work item is not the module's; a rescuer
	# (kworker/R-*) is.
	! pgrep -l "^($MODULE|kworker/R-$MODULE)" || die 'threads are left'
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

# serve SECONDS SERVER...: starts the server of a pair; SERVER_PID is its process id.
serve() {
	local limit=$1
	shift
	SERVER_OUT=$TMP/server.$BASHPID.$PORT
	start "$NS_B" "$SERVER_OUT" within "$limit" "$@"
	SERVER_PID=$STARTED
}

# call SECONDS CLIENT...: runs the client of a pair once the server listens, and waits for both.
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
	124 | 137) echo "not done in time; last line: $(last_line "$2")" ;;
	*) echo "exit status $1: $(last_line "$2")" ;;
	esac
}

# rping_pair 4|6 COUNT [OPTIONS of both ends...]: rping over IPv4 or IPv6.
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
# perftest makes a first connection to negotiate the second one, for which its server listens anew.
# If the client is faster, it is rejected, and crashes when it retries by itself. Only this failure
# is repeated.
perftest_pair() {
	local tool=$1 try
	shift
	for ((try = 1; try <= 8; try++)); do
		perftest_serve "$tool" "$@"
		if perftest_call "$tool" "$@"; then return 0; fi
		too_early || return 1
		echo "the client was too early for the server (try $try)"
		PORT=$((PORT + 1))
	done
	return 1
}

# perftest_serve TOOL [OPTIONS of both ends...]: starts the server of perftest_pair, for one call.
perftest_serve() {
	local tool=$1
	shift
	serve "${PERFTEST_LIMIT:-60}" "$tool" -R -F -d "$DEV_B" -p "$PORT" "$@"
}

# perftest_call TOOL [OPTIONS of both ends...]: runs the client of perftest_pair.
perftest_call() {
	local tool=$1
	shift
	call "${PERFTEST_LIMIT:-60}" "$tool" -R -F -d "$DEV_A" -p "$PORT" "$@" "$IP4_B"
}

# too_early: succeeds if the failed client is a perftest program that was faster than its server,
# which listens twice: event 8 is RDMA_CM_EVENT_REJECTED.
too_early() { grep -qE 'Failed to connect RDMA CM events|Unexpected CM event bl blka 8$' "$CLIENT_OUT"; }

# perftest_rows: prints the rows of figures of a perftest program, which start with a message size.
perftest_rows() { grep -E '^ *[0-9]+ +[0-9]+ +' "$CLIENT_OUT" || true; }

# perftest_table ROWS: checks the number of rows, and that no figure is zero, infinite or not a
# number. (Either the bandwidth or the message rate may be rounded to zero, not both.) If the
# processors are busy, perftest cannot measure its clock and says so; its figures are then ignored.
# The standard deviation of latencies, the seventh figure, is ignored: perftest squares a deviation
# in an int, which overflows at 46 ms.
perftest_table() {
	local rows
	rows=$(perftest_rows | wc -l)
	[ "$rows" = "$1" ] || die "$rows rows instead of $1"
	if grep 'Correlation coefficient' "$CLIENT_OUT"; then return 0; fi
	perftest_rows | awk 'NF > 7 { $7 = 0 } !($4 > 0 || $5 > 0) || /inf|nan/ { bad = 1 } END { exit bad }' || die "figures: $(perftest_rows)"
}

# perftest_checked ROWS TOOL [OPTIONS of both ends...]: perftest_pair, then perftest_table.
perftest_checked() {
	perftest_pair "${@:2}"
	perftest_table "$1"
}

# perftest_figure TOOL: prints its first figure in CLIENT_OUT: the average bandwidth in MiB/s or the
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
