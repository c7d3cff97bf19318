# SPDX-License-Identifier: GPL-2.0
# For suites of a disk in guest 1 that guest 2 uses: over riwarp and with siw as either end, then
# over riwarp with one fault after another under load. Guest 2 reports, and sends orders to guest 1.
# Sourced, in scripts that run with qemu/run --guests 2 --restarts --out DIR. PAIRS lists the ends
# (TARGET/HOST...), FAULTS the faults; CYCLES is how often a disk is connected and disconnected.
# shellcheck shell=bash

NS_A=- NET_A=eth0 IP4_B=10.77.0.1

# --- orders ---------------------------------------------------------------------------------------

# order COMMAND...: has guest 1 run it, and waits until it is done. SAID is the file of its output.
order() {
	local n=1 file status
	while [ -e "/mnt/out/order.$n" ]; do n=$((n + 1)); done
	file=/mnt/out/order.$n
	echo "$*" >"$file.new"
	mv "$file.new" "$file"
	[ "$1" != finish ] || return 0
	eventually 90 test -e "$file.done" || die "guest 1 did not finish: $*"
	status=$(cat "$file.done") SAID=$file.said
	[ "$status" = 0 ] || { cat "$SAID"; die "guest 1: $*: $status"; }
}

# serve_orders: guest 1 runs orders until `finish`. An order with output but no status is the one at
# which the guest restarted; it counts as done.
serve_orders() {
	local n=0 file words status
	while :; do
		n=$((n + 1)) status=0
		file=/mnt/out/order.$n
		[ ! -e "$file.done" ] || continue
		eventually 600 test -e "$file" || { not_ok orders 'none came'; return; }
		read -r -a words <"$file"
		[ "${words[0]}" != finish ] || return 0
		if [ ! -e "$file.said" ]; then
			# In the background, since `set -e` has no effect in a condition.
			(set -eu; "${words[@]}") >"$file.said" 2>&1 </dev/null &
			wait $! || status=$?
		fi
		echo "$status" >"$file.done.new"
		mv "$file.done.new" "$file.done"
	done
}

# Resets this guest, without a shutdown; it boots again.
restart() {
	: >/run/job/restart
	echo b >/proc/sysrq-trigger
	sleep 60
}

# --- ends -----------------------------------------------------------------------------------------

# device_up TYPE PEER: makes this guest's device, whose peer is of type PEER.
device_up() {
	DEV_A=$1 PEER=$2
	load_modules "${1%%_*}"
	link_add - "$DEV_A" "$1" "$NET_A"
	[ "$1/$2" != riwarp/siw ] || setting - "$DEV_A" peer_to_peer 0
}

device_down() { within 30 rdma link del "$1"; }

# end_up TYPE PEER [PARAMETER...]: sets up the target's end.
end_up() {
	device_up "$1" "$2"
	shift 2
	target_up "$@"
}

end_down() {
	target_down
	device_down "$1"
}

# The parameters of the target's module, and the prefix of the names of such cases.
TARGET_PARAMETERS=() PREFIX=''

# stale: succeeds if guest 1 must restart before it is a target again.
stale() { false; }

# fresh: has guest 1 restart if it is stale, while it is no target.
fresh() { ! stale || order restart; }

order_target_up() { order target_up "${TARGET_PARAMETERS[@]}"; }

# order_end_up TYPE PEER: has guest 1 set up the target's end.
order_end_up() { order end_up "$@" "${TARGET_PARAMETERS[@]}"; }

# roles TARGET HOST: runs the cases with these types. With siw as either end, the disk is connected
# at most 20 times. siw registers at most 256 pages, and the host needs one of them for unaligned
# memory.
roles() {
	local cycles=$CYCLES LONGEST=$LONGEST
	[ "$2" != siw ] || LONGEST=1020
	fresh
	[ "$1/$2" = riwarp/riwarp ] || [ "$cycles" -le 20 ] || cycles=20
	order_end_up "$1" "$2"
	device_up "$2" "$1"
	initiator_up
	CYCLES=$cycles DEPTHS=${DEPTHS:-1 32 128} disk_cases "$PREFIX$2_to_$1/"
	initiator_down
	device_down "$2"
	order end_down "$1"
}

roles_in_turn() {
	local pair
	for pair in ${PAIRS-riwarp/riwarp riwarp/siw siw/riwarp}; do roles "${pair%/*}" "${pair#*/}"; done
}

# --- faults ---------------------------------------------------------------------------------------

each_end() {
	order "$@"
	"$@"
}

sum_of_ends() {
	order "$@"
	echo $(($(cat "$SAID") + $("$@")))
}

# network NETEM...: applies netem to what either guest sends; the load must succeed nevertheless.
network() {
	each_end tc qdisc replace dev eth0 root netem "$@"
	connect
	load_begin 5
	load_end good
	each_end tc qdisc del dev eth0 root
	disconnect
	connected marked
}

loss() { network loss 1%; }
delay() { network delay 50ms; }
reordering() { network delay 5ms reorder 25% 50%; }
corruption() { network corrupt 0.5%; }

netdev_down_and_up() {
	connect
	load_begin 6
	flap
	load_end any
	again
}

netdev_of_target_down_and_up() {
	connect
	load_begin 6
	order flap
	load_end any
	again
}

flap() {
	ip link set eth0 down
	nap 1
	ip link set eth0 up
}

device_of_host_deleted() {
	impatient
	load_begin 6
	device_down riwarp
	load_end any
	device_up riwarp riwarp
	again
}

device_of_target_deleted() {
	impatient
	load_begin 6
	order device_down riwarp
	load_end any
	order target_down
	order_end_up riwarp riwarp
	again
}

target_removed() {
	impatient
	load_begin 6
	order target_down
	load_end any
	order_target_up
	again
}

target_restarted() {
	impatient
	load_begin 6
	order restart
	load_end any
	order_end_up riwarp riwarp
	again lost
}

# With the roles reversed: the target releases all resources of a host that no longer exists.
host_restarted() {
	order target_down
	IP4_B=10.77.0.2
	target_up "${TARGET_PARAMETERS[@]}"
	order other_host_begin "$MARK"
	order restart
	order other_host_again "$MARK"
	eventually 60 no_qp || die "left: $(rdma resource show qp)"
	target_down
	IP4_B=10.77.0.1
	order_end_up riwarp riwarp
	connected verified 8
}

# other_host_begin MARK
other_host_begin() {
	IP4_B=10.77.0.2 MARK=$1
	initiator_up
	connect
	load_begin 60
}

# other_host_again MARK
other_host_again() {
	IP4_B=10.77.0.2 MARK=$1
	device_up riwarp riwarp
	initiator_up
	connected marked
	connected verified 8
	initiator_down
	device_down riwarp
}

# The faults that leave the target's end as it was; these run first.
GENTLE_FAULTS='loss delay reordering corruption netdev_down_and_up netdev_of_target_down_and_up device_of_host_deleted'
ROUGH_FAULTS='target_restarted device_of_target_deleted target_removed host_restarted'

# in_turn FAULT...: runs those that FAULTS lists, each with a mark of its own.
in_turn() {
	local fault
	for fault; do
		[[ " ${FAULTS-$*} " = *" $fault "* ]] || continue
		if stale; then
			order restart
			order_end_up riwarp riwarp
		fi
		MARK=$PREFIX$fault
		try "${PREFIX}fault/$fault" 150 "$fault"
	done
}

faults_begin() {
	fresh
	order_end_up riwarp riwarp
	device_up riwarp riwarp
	initiator_up
}

faults_end() {
	initiator_down
	device_down riwarp
	order end_down riwarp
}

faults() {
	faults_begin
	# shellcheck disable=SC2086
	in_turn $GENTLE_FAULTS
	! can_starve || try "${PREFIX}fault/starved" 150 starved
	# shellcheck disable=SC2086
	in_turn $ROUGH_FAULTS
	faults_end
	try "${PREFIX}fault/unload" 30 within 20 rmmod riwarp
	order within 20 rmmod riwarp
}

# two_guests COMMAND...: guest 2 runs the command, guest 1 its orders.
two_guests() {
	if [ "$GUEST" = 1 ]; then
		serve_orders
	else
		"$@"
		order finish
	fi
	finish
}
