#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Programs with random operations, whose data are checked from end to end (verbs/torture.c), while
# their processes, devices, interfaces, packets, processors and memory are taken away.
#
# DURATION is in seconds (default 40), SEED repeats a sequence of random numbers, though not what
# the processes make of it, and ACTIONS selects some of those below. STEPS says how many of them are
# done, instead of DURATION.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=starve.sh
. "$(dirname "$0")/starve.sh"

STEPS=${STEPS:-}
DURATION=${DURATION:-$((STEPS ? 10 * STEPS : 40))}
SEED=${SEED:-$((0x$(head -c 3 /dev/urandom | od -An -tx1 | tr -d ' ')))}
RANDOM=$SEED
TYPES=(riwarp riwarp_siw)
CALLERS=3

# pick WORD...: sets PICKED to one of them.
pick() { shift $((RANDOM % $#)); PICKED=$1; }
# some LOW HIGH: sets SOME to a number from LOW to HIGH.
some() { SOME=$(($1 + RANDOM % ($2 - $1 + 1))); }

# did WORD: counts something that was done.
did() { DONE[$1]=$((${DONE[$1]:-0} + 1)); }
declare -A DONE

# --- the processes --------------------------------------------------------------------------------

# again NAME NETNS COMMAND...: runs a program again and again until the file `stop` exists. The
# program with the file pid.NAME may be killed at any time; status 3 says that something was wrong,
# and so does another signal.
# The words SEED and LIFE of the command are new each time.
again() {
	local name=$1 where=$2 rc word command
	shift 2
	RANDOM=$((SEED + $(cksum <<<"$name" | cut -d' ' -f1) % 30000))
	until [ -e "$TMP/stop" ]; do
		command=()
		for word; do
			case $word in
			SEED) word=$((RANDOM * 32768 + RANDOM)) ;;
			LIFE) word=$((1 + RANDOM % 6)) ;;
			esac
			command+=("$word")
		done
		rc=0
		start "$where" "$TMP/log.$name" "${command[@]}"
		echo "$STARTED" >"$TMP/pid.$name"
		wait "$STARTED" || rc=$?
		rm -f "$TMP/pid.$name"
		judge "$name" "$rc" "${command[@]}"
		nap 0.1
	done
}

# judge NAME STATUS WORD...: notes what the program, whose output is in log.NAME, has found wrong.
judge() {
	[ "$2" = 3 ] || { [ "$2" -gt 128 ] && [ "$2" != 137 ]; } || grep -q '^WRONG' "$TMP/log.$1" || return 0
	{ echo "$1, ${*:3}: status $2: "; tail -n 5 "$TMP/log.$1"; } >>"$TMP/wrong"
}

# start_all: starts a server and CALLERS callers for each link type. Each link has its own family.
start_all() {
	local i n address
	rm -f "$TMP/stop"
	LOOPS=()
	for i in "${!TYPES[@]}"; do
		address=${ADDRESS[i]}
		local extensions=()
		[ "${TYPES[i]}" != riwarp ] || extensions=(EXTENSIONS=1)
		again "server$i" "${B[i]}" env TALLY="$TMP/tally.$i" PORT=$((PORT + i)) "${extensions[@]}" "$VERBS_DIR/torture" serve "$address" SEED &
		LOOPS+=($!)
		for ((n = 0; n < CALLERS; n++)); do
			again "caller$i$n" "${A[i]}" env TALLY="$TMP/tally.$i" PORT=$((PORT + i)) THREADS=2 "${extensions[@]}" \
				"$VERBS_DIR/torture" call "$address" SEED LIFE &
			LOOPS+=($!)
		done
	done
}

# running: prints the processes that run.
running() { cat "$TMP"/pid.* 2>/dev/null || true; }

# kill_and_see PID...: kills processes; each must be gone within half a minute.
kill_and_see() {
	local pid
	kill -KILL "$@" 2>/dev/null || true
	for pid; do
		eventually 30 gone_or_reaped "$pid" || hang "$pid"
	done
}
# A process that has ended stays as a zombie until its loop looks.
gone_or_reaped() { ! grep -q '^State:[[:space:]]*[^ZX]' "/proc/$1/status" 2>/dev/null; }
hang() {
	echo "process $1 does not end:"
	cat "/proc/$1/task/"*/stack
	die "a hang: $(last_line "/proc/$1/stack" 2>/dev/null)"
}

stop_all() {
	local loop
	: >"$TMP/stop"
	# A loop may just have started one more.
	for loop in "${LOOPS[@]}"; do
		# shellcheck disable=SC2046
		until gone "$loop"; do kill_and_see $(running); nap 0.05; done
		wait "$loop" || true
	done
}

# --- what is done to them -------------------------------------------------------------------------

kill_one() {
	local all
	eventually 20 any_runs || die 'no process runs'
	mapfile -t all < <(running)
	# It may just have ended by itself.
	[ ${#all[@]} -gt 0 ] || return 0
	pick "${all[@]}"
	kill_and_see "$PICKED"
}

any_runs() { [ "$(running)" ]; }

# side: picks a link and a side: sets I, NS, DEV, NET, and TO, the address of the other side.
side() {
	some 0 $((${#TYPES[@]} - 1))
	I=$SOME
	pick A B
	if [ "$PICKED" = A ]; then
		NS=${A[I]} DEV=${DEV_OF_A[I]} NET=${NET_OF_A[I]} TO=${ADDRESS[I]}
	else
		NS=${B[I]} DEV=${DEV_OF_B[I]} NET=${NET_OF_B[I]} TO=${ADDRESS_OF_A[I]}
	fi
}

device_removed() {
	side
	within 30 ip netns exec "$NS" rdma link del "$DEV" || die "rdma link del $DEV: $?"
	nap 0.$((RANDOM % 10))
	within 30 ip netns exec "$NS" rdma link add "$DEV" type "${TYPES[I]}" netdev "$NET" || die "rdma link add $DEV: $?"
	[ -z "${TLS:-}" ] || secure_link "$NS" "$DEV"
}

# The addresses of an interface that was down or too small are added again.
addresses() {
	local i
	for i in "${!TYPES[@]}"; do
		ip -n "${A[i]}" -batch - <<-END
			addr replace ${IP4_OF_A[i]}/24 dev ${NET_OF_A[i]}
			addr replace ${IP6_OF_A[i]}/64 dev ${NET_OF_A[i]} nodad
		END
		ip -n "${B[i]}" -batch - <<-END
			addr replace ${IP4_OF_B[i]}/24 dev ${NET_OF_B[i]}
			addr replace ${IP6_OF_B[i]}/64 dev ${NET_OF_B[i]} nodad
		END
	done
}

interface_down() {
	side
	ip -n "$NS" link set "$NET" down
	nap 0.$((RANDOM % 10))
	ip -n "$NS" link set "$NET" up
	addresses
}

addresses_changed() {
	side
	ip -n "$NS" addr flush dev "$NET"
	nap 0.$((RANDOM % 10))
	addresses
}

mtu_changed() {
	side
	pick 1280 1500 4000 9000
	ip -n "${A[I]}" link set "${NET_OF_A[I]}" mtu "$PICKED"
	# The other end may keep another one.
	[ $((RANDOM % 2)) = 0 ] || ip -n "${B[I]}" link set "${NET_OF_B[I]}" mtu "$PICKED"
	nap 1
	ip -n "${A[I]}" link set "${NET_OF_A[I]}" mtu 1500
	ip -n "${B[I]}" link set "${NET_OF_B[I]}" mtu 1500
}

packets_hurt() {
	side
	pick 'loss 4%' 'delay 4ms 3ms' 'delay 2ms reorder 25% 50%' 'corrupt 2%' 'duplicate 5%' 'loss 1% corrupt 1% duplicate 1%'
	# shellcheck disable=SC2086
	in_ns "$NS" tc qdisc replace dev "$NET" root netem $PICKED || die "netem $PICKED"
	some 1 3
	nap "$SOME"
	in_ns "$NS" tc qdisc del dev "$NET" root
}

offloads_changed() {
	local feature
	side
	for feature in tso gso gro rx-gro-list tx; do
		pick on off
		in_ns "$NS" ethtool -K "$NET" "$feature" "$PICKED" >/dev/null 2>&1 || true
	done
}

tcp_changed() {
	local name
	side
	for name in tcp_timestamps tcp_sack tcp_window_scaling tcp_ecn; do
		pick 0 1
		in_ns "$NS" sysctl -q -w "net.ipv4.$name=$PICKED"
	done
}

settings_changed() {
	side
	pick crc mpa_rev peer_to_peer extensions
	local name=$PICKED
	case $name in
	mpa_rev) pick 1 2 ;;
	*) pick 0 1 ;;
	esac
	setting "$NS" "$DEV" "$name" "$PICKED"
	# One that the programs' first messages need is put back.
	[ "$name" != peer_to_peer ] && [ "$name" != mpa_rev ] || {
		nap 0.5
		setting "$NS" "$DEV" peer_to_peer 1
		setting "$NS" "$DEV" mpa_rev 2
	}
}

# The way to the other side gets the smallest MTU, or almost, for a while.
route_changed() {
	local mtu=600
	side
	[[ $TO != *:* ]] || mtu=1280
	in_ns "$NS" ip route replace "$TO" dev "$NET" mtu lock "$mtu" || die "no route to $TO"
	some 1 3
	nap "$SOME"
	in_ns "$NS" ip route del "$TO" dev "$NET" mtu lock "$mtu" || die "the route to $TO stays"
}

# ESP protects a link for a while. Its streams stay open, and packets of theirs come that way.
encrypted() {
	local ns from to ways key=0x00112233445566778899aabbccddeeff00000001
	some 0 $((${#TYPES[@]} - 1))
	I=$SOME from=${ADDRESS_OF_A[SOME]} to=${ADDRESS[SOME]}
	for ns in "${A[I]}" "${B[I]}"; do
		ways=(out in)
		[ "$ns" = "${A[I]}" ] || ways=(in out)
		ip -n "$ns" -batch - <<-END
			xfrm state add src $from dst $to proto esp spi 1 mode transport aead rfc4106(gcm(aes)) $key 128
			xfrm state add src $to dst $from proto esp spi 2 mode transport aead rfc4106(gcm(aes)) $key 128
			xfrm policy add src $from dst $to proto tcp dir ${ways[0]} tmpl src $from dst $to proto esp mode transport
			xfrm policy add src $to dst $from proto tcp dir ${ways[1]} tmpl src $to dst $from proto esp mode transport
		END
	done
	eventually 30 esp_received || die "no packet came by ESP: $(ip -n "${B[I]}" -s xfrm state)"
	some 1 3
	nap "$SOME"
	for ns in "${A[I]}" "${B[I]}"; do ip -n "$ns" xfrm policy flush; done
	for ns in "${A[I]}" "${B[I]}"; do ip -n "$ns" xfrm state flush; done
}
esp_received() { ip -n "${B[I]}" -s xfrm state list src "${ADDRESS_OF_A[I]}" | grep -q '[1-9][0-9]*(packets)'; }

# WireGuard carries the packets of a link for a while, between the link's addresses of the family
# that its streams do not have. The streams stay open.
tunnelled() {
	local ns outer bits
	some 0 $((${#TYPES[@]} - 1))
	I=$SOME
	if [ "${ADDRESS[I]}" = "${IP4_OF_B[I]}" ]; then
		outer=("[${IP6_OF_A[I]}]" "[${IP6_OF_B[I]}]") bits=32
	else
		outer=("${IP4_OF_A[I]}" "${IP4_OF_B[I]}") bits=128
	fi
	tunnel_end "${A[I]}" key_a key_b "${outer[1]}" "${ADDRESS[I]}/$bits"
	tunnel_end "${B[I]}" key_b key_a "${outer[0]}" "${ADDRESS_OF_A[I]}/$bits"
	eventually 30 tunnel_carries || die "no packet came by WireGuard: $(in_ns "${B[I]}" wg show wg0)"
	some 1 3
	nap "$SOME"
	for ns in "${A[I]}" "${B[I]}"; do ip -n "$ns" link del wg0; done
}

# tunnel_end NETNS OWN_KEY PEERS_KEY OUTER_ADDRESS_OF_PEER ADDRESSES_OF_PEER
tunnel_end() {
	local key
	for key in "$2" "$3"; do [ -e "$TMP/$key" ] || (umask 077 && wg genkey >"$TMP/$key"); done
	ip -n "$1" link add wg0 type wireguard
	in_ns "$1" wg set wg0 listen-port 51820 private-key "$TMP/$2" \
		peer "$(wg pubkey <"$TMP/$3")" endpoint "$4:51820" allowed-ips "$5"
	ip -n "$1" link set wg0 mtu 1420 up
	ip -n "$1" route add "$5" dev wg0
}
# More than the handshake, whose messages have 92 and 148 octets.
tunnel_carries() { in_ns "${B[I]}" wg show wg0 transfer | awk '{ exit $2 < 10000 }'; }

processor_off() {
	echo 0 >/sys/devices/system/cpu/cpu1/online
	nap 0.$((1 + RANDOM % 9))
	echo 1 >/sys/devices/system/cpu/cpu1/online
}

memory_dropped() {
	echo 3 >/proc/sys/vm/drop_caches
	[ ! -w /proc/sys/vm/compact_memory ] || echo 1 >/proc/sys/vm/compact_memory
}

memory_fails() {
	local times=300
	if [ -z "${AIMED:-}" ]; then
		aim_at_module
		# If this fails, ib_core keeps the task for ever (UVERBS_METHOD_GET_CONTEXT).
		spare '8ucontext14alloc_ucontext'
		AIMED=1
	fi
	some 2 50
	starve_module "$SOME" $times
	nap 4
	feed
	FAILURES=$((${FAILURES:-0} + $(starved_times $times)))
}

# A namespace is deleted with a device in it on which programs work.
namespace_deleted() {
	local pids=() n rc
	NAMESPACES=$((${NAMESPACES:-0} + 1))
	ip netns add gone
	ip -n gone link set lo up
	# rdma_resolve_addr() refuses 127.0.0.1 in some kernels (EINVAL).
	ip -n gone addr add 10.75.1.1/32 dev lo
	in_ns gone rdma link add "gone$NAMESPACES" type riwarp netdev lo || die 'no device in the new namespace'
	GONE=$TMP/tally.gone$NAMESPACES
	start gone "$TMP/log.gone1" env TALLY="$GONE" PORT=7999 EXTENSIONS=1 "$VERBS_DIR/torture" serve 10.75.1.1 $RANDOM
	pids+=("$STARTED")
	start gone "$TMP/log.gone2" env TALLY="$GONE" PORT=7999 EXTENSIONS=1 "$VERBS_DIR/torture" call 10.75.1.1 $RANDOM 30
	pids+=("$STARTED")
	eventually 30 gone_works || die "nothing in the namespace: $(last_line "$TMP/log.gone2")"
	# The namespace goes when nothing is left in it; its device may go before.
	ip netns del gone
	kill_and_see "${pids[@]}"
	for n in 1 2; do
		rc=0
		wait "${pids[n - 1]}" 2>/dev/null || rc=$?
		judge "gone$n" "$rc"
	done
	eventually 30 link_is_gone - "gone$NAMESPACES" || die 'the device of a deleted namespace is left'
}
gone_works() { [ "$(tally_of "$GONE" octets-compared)" -gt 0 ]; }

# The module goes with all devices, and comes again.
module_unloaded() {
	local i unloading
	# It is tried from the time on at which the first of them is killed, with streams open.
	eventually 60 rmmod "$MODULE" &
	unloading=$!
	stop_all
	wait "$unloading" || die "rmmod: $(rmmod "$MODULE" 2>&1 || true)"
	modprobe "$MODULE"
	unset AIMED
	for i in "${!TYPES[@]}"; do
		in_ns "${A[i]}" rdma link add "${DEV_OF_A[i]}" type "${TYPES[i]}" netdev "${NET_OF_A[i]}" || die "no device again"
		in_ns "${B[i]}" rdma link add "${DEV_OF_B[i]}" type "${TYPES[i]}" netdev "${NET_OF_B[i]}" || die "no device again"
		[ -z "${TLS:-}" ] || { secure_link "${A[i]}" "${DEV_OF_A[i]}"; secure_link "${B[i]}" "${DEV_OF_B[i]}"; }
	done
	start_all
}

# --- the run --------------------------------------------------------------------------------------

# tally_of FILE NAME: prints what the programs have counted in this file.
tally_of() { TALLY=$1 "$VERBS_DIR/torture" tally | awk -v name="$2" '$1 == name { print $2 }'; }
# compared_more TYPE: whether more connections were made and more data compared over this link type.
compared_more() {
	[ "$(tally_of "$TMP/tally.$1" octets-compared)" -gt "${COMPARED[$1]}" ] &&
		[ "$(tally_of "$TMP/tally.$1" connections)" -gt "${CONNECTIONS[$1]}" ]
}

# goes_on: fails unless connections are made and data move over each link type, now that nobody does
# anything to them.
goes_on() {
	local i
	for i in "${!TYPES[@]}"; do
		COMPARED[i]=$(tally_of "$TMP/tally.$i" octets-compared)
		CONNECTIONS[i]=$(tally_of "$TMP/tally.$i" connections)
	done
	for i in "${!TYPES[@]}"; do
		eventually 60 compared_more "$i" || {
			rdma link show
			rdma resource show qp
			tail -n 3 "$TMP"/log.*
			die "nothing goes on over ${TYPES[i]}: ${COMPARED[i]} octets, ${CONNECTIONS[i]} connections before"
		}
	done
}

nothing_wrong() {
	[ ! -s "$TMP/wrong" ] || { cat "$TMP/wrong"; die "$(grep -a -m 1 WRONG "$TMP/wrong" || head -n 1 "$TMP/wrong")"; }
}

torture() {
	local end=$((SECONDS + DURATION)) steps=0 what
	local everything=(kill_one kill_one kill_one device_removed device_removed interface_down addresses_changed
		mtu_changed packets_hurt packets_hurt packets_hurt offloads_changed tcp_changed settings_changed
		settings_changed route_changed memory_dropped namespace_deleted module_unloaded)
	[ ! -w /sys/devices/system/cpu/cpu1/online ] || everything+=(processor_off)
	! modprobe -qa esp4 esp6 xfrm_user || everything+=(encrypted)
	! modprobe -q wireguard || everything+=(tunnelled)
	! can_starve || everything+=(memory_fails memory_fails)
	[ -z "${ACTIONS:-}" ] || read -ra everything <<<"$ACTIONS"
	start_all
	goes_on
	while if [ "$STEPS" ]; then [ "$steps" -lt "$STEPS" ]; else [ "$SECONDS" -lt "$end" ]; fi; do
		pick "${everything[@]}"
		what=$PICKED
		echo "$SECONDS s: $what"
		"$what"
		did "$what"
		nothing_wrong
		nap 0.$((RANDOM % 10))
		steps=$((steps + 1))
		[ $((steps % 8)) != 0 ] || goes_on
	done
	goes_on
	stop_all
	nothing_wrong
	[ "${DONE[memory_fails]:-0}" -lt 3 ] || [ "${FAILURES:-0}" -gt 0 ] || die 'no allocation has failed'
	{
		for what in "$TMP"/tally.*; do TALLY=$what "$VERBS_DIR/torture" tally; done |
			awk '!($1 in n) { names[++count] = $1 } { n[$1] += $2 } END { for (i = 1; i <= count; i++) print names[i], n[names[i]] }'
		for what in "${!DONE[@]}"; do echo "$what ${DONE[$what]}"; done | sort
		echo "allocations-failed ${FAILURES:-0}"
	} >"$TMP/counts"
	nothing_left 30 qp cm_id cq mr pd mw srq ctx
}

COMPARED=() CONNECTIONS=()
A=() B=() DEV_OF_A=() DEV_OF_B=() NET_OF_A=() NET_OF_B=() IP4_OF_A=() IP4_OF_B=() IP6_OF_A=() IP6_OF_B=()
modprobe sch_netem || true
# The first link is one of TAP devices where the kernel has them, the second a veth pair.
LINK=veth
! modprobe -q tun || LINK=tap
for TYPE in "${TYPES[@]}"; do
	ends_up netns
	LINK=veth
	A+=("$NS_A") B+=("$NS_B") DEV_OF_A+=("$DEV_A") DEV_OF_B+=("$DEV_B") NET_OF_A+=("$NET_A") NET_OF_B+=("$NET_B")
	IP4_OF_A+=("$IP4_A") IP4_OF_B+=("$IP4_B") IP6_OF_A+=("$IP6_A") IP6_OF_B+=("$IP6_B")
done
ADDRESS=("${IP4_OF_B[0]}" "${IP6_OF_B[1]}") ADDRESS_OF_A=("${IP4_OF_A[0]}" "${IP6_OF_A[1]}")
echo "# SEED=$SEED"
try random $((DURATION + 200)) torture
[ ! -e "$TMP/counts" ] || sed 's/^/# /' "$TMP/counts"
try unloads 60 unloads
ends_down
[ ! -e "$TMP/taps.1" ] || taps_did
finish
