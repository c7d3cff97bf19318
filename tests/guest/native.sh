#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Measures for tests/native, in one guest of uml/run, with rbench (tests/native). Both ends of a
# connection are on one device, so the path is the loopback interface and nothing else differs.
# Prints
#
#     row MTU TEST SIZE DEVICE MODULE ROUND FIGURE     (MiB/s for _bw, us for _lat)
#
# Arguments NAME=VALUE: MTUS; TESTS (TEST:SIZE, rbench's names); DEVICES (siw; riw0 and riw1: riwarp
# without and with CRC; rsiw: riwarp_siw without CRC; tcp: a socket instead); ROUNDS; DURATION
# (seconds of a run); MODULES: files of riwarp.ko below /mnt/share that take turns in each round,
# alternately forward and backward (default: the checkout's module).
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

MTUS=${MTUS:-65536 1500}
TESTS=${TESTS:-write_bw:1048576 send_bw:1048576 read_bw:1048576 write_lat:64 send_lat:64 read_lat:64}
DEVICES=${DEVICES:-siw riw0 riw1 rsiw tcp}
ROUNDS=${ROUNDS:-3}
DURATION=${DURATION:-1}
read -ra modules <<<"${MODULES:--}"

address_of() {
	case $1 in
	siw | tcp) echo 10.74.1.1 ;;
	riw0) echo 10.74.2.1 ;;
	riw1) echo 10.74.3.1 ;;
	rsiw) echo 10.74.4.1 ;;
	esac
}

# device NAME TYPE [CRC]: makes a device on its own interface, if DEVICES has it.
device() {
	[[ " $DEVICES " = *" $1 "* ]] || return 0
	link_add - "$1" "$2" "n$1"
	[ -z "${3:-}" ] || setting - "$1" crc "$3"
}

# exchange FILE: loads this module in place of the current one and makes riwarp's devices anew.
exchange() {
	local dev
	[ "$1" != "$loaded" ] || return 0
	for dev in riw0 riw1 rsiw; do ! link_exists - "$dev" || link_del - "$dev"; done
	rmmod riwarp
	if [ "$1" = - ]; then modprobe riwarp; else insmod "/mnt/share/$1"; fi
	loaded=$1
	device riw0 riwarp 0
	device riw1 riwarp 1
	device rsiw riwarp_siw 0
}

# measure DEVICE MODULE: runs one measurement and prints its row.
measure() {
	local test=${case%:*} kind=$1 figure
	case $kind/$test in
	tcp/*_bw) test=tcp_bw ;;
	tcp/*) test=tcp_lat ;;
	esac
	"$VERBS_DIR/rbench" -c "$(address_of "$kind")" -t "$test" -m "${case#*:}" -d "$DURATION" -T 60 -j >"$TMP/said" 2>&1 ||
		{ not_ok "$mtu/$case/$kind" "$(last_line "$TMP/said")"; return; }
	case $test in
	*_lat) figure=usec_per_op ;;
	*) figure=MiB_per_s ;;
	esac
	figure=$(sed -n "s/.*\"$figure\":\([0-9.]*\),.*\"verified\":true.*/\1/p" "$TMP/said")
	printf 'row\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$mtu" "${case%:*}" "${case#*:}" "$kind" "$2" "$round" "$figure"
}

load_modules riwarp siw
for name in siw riw0 riw1 rsiw; do
	ip link add "n$name" type dummy
	NETDEVS_MADE+=("n$name")
	ip link set "n$name" up
	address_add - "n$name" "$(address_of "$name")/24"
done
loaded=''
device siw siw
exchange "${modules[0]}"
"$VERBS_DIR/rbench" -s >"$TMP/server" 2>&1 &
server=$!
STARTED=$server
wait_listen 18550
for mtu in $MTUS; do
	ip link set lo mtu "$mtu"
	for case in $TESTS; do
		for ((round = 0; round < ROUNDS; round++)); do
			for kind in siw tcp; do
				[[ " $DEVICES " != *" $kind "* ]] || measure "$kind" -
			done
			for ((i = 0; i < ${#modules[@]}; i++)); do
				module=${modules[round % 2 ? ${#modules[@]} - 1 - i : i]}
				exchange "$module"
				for kind in $DEVICES; do
					[[ $kind = siw || $kind = tcp ]] || measure "$kind" "$module"
				done
			done
		done
	done
done
kill "$server"
finish
