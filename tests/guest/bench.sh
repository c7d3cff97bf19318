#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Measures for tests/bench, tests/native-compare and tests/instructions, in one guest of qemu/run or
# uml/run, or in two of uml/run. In one, both ends of a connection are on one device, so the path is
# the loopback interface, and only the driver differs. Between two, each device has a link, and the
# second guest serves; perftest and `least` are for one. In each round the devices take turns, so
# that a slow spell of the machine affects all of them. Prints
#
#     row MTU TEST SIZE DEPTH DEVICE ROUND UNIT FIGURE
#
# with `-` as the depth where a program has its own, and as the figure where a device does not have
# the operation, or siw or rxe has failed; a line that begins with # then says why.
# A latency test of rbench prints three rows: the mean, p50 and p99.
#
# Arguments NAME=VALUE: MTUS (between two guests that of the links); TESTS (TEST:SIZE[:DEPTH], with
# the names of rbench, tests/native, of perftest's programs, or nvme_ and fio's word for the way: a
# disk over NVMe-oF); DEVICES (siw; rxe; riw0, riw1: riwarp without and with CRC; rsiw, rsiw1: the
# same of riwarp_siw; tcp: a socket, or NVMe/TCP, instead; riwt: riwarp over TLS; tcpt: NVMe/TCP
# over TLS; riww: riwarp over WireGuard, between two guests; least, least1: the least work of any
# device, without and with CRC, tests/native/least.c); ROUNDS; DURATION (seconds of a run of rbench
# or fio); COUNT: operations of a run of rbench instead, and its figure is the instructions of one,
# if the guest's clock counts them (qemu/run --icount); MODULES: files of riwarp.ko below /mnt/share
# that take turns in each round, and whose name follows that of the device, after a colon (default:
# the checkout's module); PROFILE=1 writes the addresses of all functions to /mnt/out before it
# measures, for tests/profile.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage_nvme.sh
. "$(dirname "$0")/storage_nvme.sh"

MTUS=${MTUS:-65536 1500}
TESTS=${TESTS:-write_bw:1048576 send_bw:1048576 read_bw:1048576 write_lat:64 send_lat:64 read_lat:64}
DEVICES=${DEVICES:-siw riw0 riw1 rsiw tcp}
ROUNDS=${ROUNDS:-3}
DURATION=${DURATION:-1}
COUNT=${COUNT:-}
read -ra modules <<<"${MODULES:--}"

# Our devices, as NAME TYPE CRC.
OURS='riw0 riwarp 0
riw1 riwarp 1
rsiw riwarp_siw 0
rsiw1 riwarp_siw 1
riwt riwarp 0
riww riwarp 0'

# The number of a device's link, vec1 to vec6, or of TCP's, eth0. No run has both of those that
# share one.
declare -A LINK_OF=([tcp]=0 [tcpt]=0 [siw]=1 [rxe]=2 [riw0]=3 [riw1]=4 [rsiw]=5 [rsiw1]=6 [riwt]=5 [riww]=6)
# What a WireGuard interface needs of the MTU.
TUNNEL=80
HOST_NQN=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000077

# address_of DEVICE: prints that of the guest that serves; TCP goes over eth0.
address_of() {
	case $1 in
	tcp | tcpt) echo "10.77.0.$NGUESTS" ;;
	*) echo "10.74.${LINK_OF[$1]}.$NGUESTS" ;;
	esac
}

# device NAME TYPE [CRC]: makes a device on its own interface, if DEVICES has it.
device() {
	[[ " $DEVICES " = *" $1 "* ]] || return 0
	if [ ! -e "/sys/class/net/n$1" ]; then
		if [ "$NGUESTS" = 1 ]; then
			ip link add "n$1" type dummy
		else
			ip link set "vec${LINK_OF[$1]}" name "n$1"
		fi
		NETDEVS_MADE+=("n$1")
		[ "$1" != riww ] || tunnel "n$1"
		ip link set "n$1" up
		address_add - "n$1" "10.74.${LINK_OF[$1]}.$GUEST/24"
	fi
	link_add - "$1" "$2" "n$1"
	[ "$1" != riwt ] || TLS=psk secure_link - "$1"
	[ -z "${3:-}" ] || setting - "$1" crc "$3"
}

# tunnel NAME: puts a WireGuard interface of this name over the link that has it.
tunnel() {
	local peer=$((3 - GUEST))
	ip link set "$1" name "w$1"
	ip link set "w$1" up
	address_add - "w$1" "10.76.0.$GUEST/24"
	ip link add "$1" type wireguard
	secret_of "$GUEST" >"$TMP/wireguard"
	wg set "$1" private-key "$TMP/wireguard" listen-port 51820 peer "$(secret_of "$peer" | wg pubkey)" \
		endpoint "10.76.0.$peer:51820" allowed-ips 10.74.0.0/16
}
secret_of() { printf 'the secret key of guest number %d' "$1" | base64; }

# exchange FILE: loads this module in place of the current one and makes riwarp's devices anew.
exchange() {
	local name type crc port
	[ "$1" != "$loaded" ] || return 0
	while read -r name type crc; do
		link_exists - "$name" || continue
		# A target does not listen on a device that is made anew.
		port=$(port_of "$name")
		[ ! -d "$port" ] || { rm "$port/subsystems/$NQN"; rmdir "$port"; }
		link_del - "$name"
	done <<<"$OURS"
	[ ! -d /sys/module/riwarp ] || rmmod riwarp
	if [ "$1" = - ]; then modprobe riwarp; else insmod "/mnt/share/$1"; fi
	loaded=$1
	while read -r name type crc; do device "$name" "$type" "$crc"; done <<<"$OURS"
}

# mtu MTU: sets that of the path, and of the interfaces, from which rxe takes its own.
mtu() {
	local dev
	for dev in lo "${NETDEVS_MADE[@]}"; do
		if [ "$dev" = nriww ]; then ip link set "$dev" mtu $(($1 - TUNNEL)); else ip link set "$dev" mtu "$1"; fi
	done
}

# measure DEVICE MODULE: runs one measurement and prints its rows.
measure() {
	local device=$1 name=$1 test size depth unit figure
	[ "$2" = - ] || name=$1:$2
	IFS=: read -r test size depth <<<"$case"
	if case $test in
	ib_*) depth=-; with_perftest ;;
	nvme_*) with_fio ;;
	*)
		depth=${depth:-$(default_depth)}
		if [[ $device = least* ]]; then with_least; else with_rbench; fi
		;;
	esac; then
		while read -r unit figure; do
			row "$unit" "$figure"
		done <"$TMP/figures"
	elif [[ $device =~ ^(siw|rxe)$ ]] || grep -q '"unsupported"' "$TMP/said"; then
		row "$(default_unit)" -
		echo "# $mtu/$case/$name: $(last_line "$TMP/said")"
	else
		not_ok "$mtu/$case/$name" "$(last_line "$TMP/said")"
	fi
}

row() { printf 'row\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$mtu" "$test" "$size" "$depth" "$name" "$round" "$1" "$2"; }
default_unit() {
	[ -z "$COUNT" ] || { echo instructions; return; }
	case $test in
	nvme_*) echo IOPS ;;
	*_lat) echo us ;;
	*) echo MiB/s ;;
	esac
}
default_depth() { if [[ $test = *_lat ]]; then echo 1; else echo 64; fi; }

# Begins with few requests, and repeats with more until a run takes DURATION; the runs before are
# the warm-up. -H is for p50 and p99. With COUNT, a process that waits gives way after one look, so
# that waiting takes few instructions, and the processor is never idle.
with_rbench() {
	local begin=$((16777216 / size)) program=$test names=MiB_per_s options
	((begin <= 1000)) || begin=1000
	case $device/$test in
	tcp/*_bw) program=tcp_bw ;;
	tcp/*_lat) program=tcp_lat ;;
	esac
	options=(-d "$DURATION" -n "$begin" -W 0)
	[[ $test != *_lat ]] || names='usec_per_op|p50|p99' options+=(-H)
	[ -z "$COUNT" ] || names=usec_per_op options=(-n "$COUNT" -W 1000 -w yield -S 1)
	"$VERBS_DIR/rbench" -c "$(address_of "$device")" -t "$program" -m "$size" -q "$depth" -T 60 -j "${options[@]}" \
		>"$TMP/said" 2>&1 || return 1
	grep -q '"verified":true' "$TMP/said" || return 1
	sed -E 's/[{}"]//g; s/,/\n/g' "$TMP/said" |
		sed -nE "s/^($names):/\1 /; T; ${COUNT:+s/^usec_per_op (.*)\./instructions \1/;} s/^usec_per_op/us/
			s,^MiB_per_s,MiB/s,; p" >"$TMP/figures"
}

with_least() {
	local options=()
	[ "$device" = least ] || options=(-c)
	"$VERBS_DIR/least" "${options[@]}" "$test" "$size" "$DURATION" >"$TMP/figures" 2>"$TMP/said"
}

with_perftest() {
	local options=(-s "$size" -n "$(iterations)")
	PORT=$((PORT + 1))
	NS_A=- NS_B=- DEV_A=$device DEV_B=$device IP4_B=$(address_of "$device")
	perftest_pair "$test" "${options[@]}" --bind_source_ip "$IP4_B" >"$TMP/said" || return 1
	echo "$(default_unit) $(perftest_figure "$test")" >"$TMP/figures"
}

# iterations: prints how many requests take half a second or more at siw's rate on an emulated
# processor.
iterations() {
	case $test/$size in
	*_bw/64) echo 5000 ;;
	*_bw/4096) echo 4000 ;;
	*_bw/65536) if [ "$mtu" = 1500 ]; then echo 800; else echo 3000; fi ;;
	*_bw/*) if [ "$mtu" = 1500 ]; then echo 60; else echo 250; fi ;;
	*_lat/64 | *_lat/4096) echo 10000 ;;
	*_lat/65536) if [ "$mtu" = 1500 ]; then echo 400; else echo 2000; fi ;;
	*_lat/*) if [ "$mtu" = 65536 ]; then echo 200; else echo 20; fi ;;
	esac
}

# The disk discards what is written. Each run has a connection of its own, with one I/O queue.
with_fio() {
	local way=${test#nvme_} field=8
	[[ $way != *write ]] || field=49
	target "$device"
	{
		modprobe "nvme-$FABRIC" && on_server served "$device" && (connect -i 1 "${SECURE[@]}") &&
			timeout 60 fio --name=bench --filename="$DISK" --direct=1 --ioengine=libaio --rw="$way" --bs="$size" \
			--iodepth="$depth" --size=200M --time_based --runtime="${DURATION}s" --gtod_reduce=1 --minimal \
			--terse-version=3 --output="$TMP/fio"
	} >"$TMP/said" 2>&1 </dev/null || { disconnect >/dev/null 2>&1 || true; return 1; }
	disconnect >"$TMP/said" 2>&1 && eventually 10 test ! -b "$DISK" || return 1
	cut -d';' -f"$field" "$TMP/fio" | sed 's/^/IOPS /' >"$TMP/figures"
}

# target DEVICE: says where the disk is by this device.
target() {
	IP4_B=$(address_of "$1") FABRIC=rdma SERVICE=4420 SECURE=()
	case $1 in
	tcp) FABRIC=tcp SERVICE=4421 ;;
	tcpt)
		FABRIC=tcp SERVICE=4422 SECURE=(--hostnqn "$HOST_NQN" --tls)
		nvme_key
		;;
	esac
}

# nvme_key: adds the key of host and subsystem, the same in each guest, once.
nvme_key() {
	[ -z "${NVME_KEY:-}" ] || return 0
	modprobe nvme_keyring
	NVME_KEY=$(nvme gen-tls-key --subsysnqn "$NQN" --hostnqn "$HOST_NQN" --identity 1 --hmac 1 \
		--secret "$(printf '%064d' 77)" --insert)
	[ -n "${TLSHD[-]:-}" ] || tlshd_start - .nvme
}

# served DEVICE: sets up the target at the device's address, once.
served() {
	target "$1"
	modprobe "nvmet-$FABRIC" || return 1
	if [ ! -d "$TARGET/subsystems/$NQN" ]; then
		modprobe null_blk && subsystem_up /dev/nullb0 || return 1
	fi
	[ -d "$(port_of "$1")" ] || port_up "$(number_of "$1")" ${SECURE:+tls1.3}
}

port_of() { echo "$TARGET/ports/$(number_of "$1")"; }
number_of() { if [ "$1" = tcpt ]; then echo 8; else echo $((LINK_OF[$1] + 1)); fi; }

# on_server COMMAND...: runs a function of this script in the guest that serves. The other, if there
# are two, asks it by files in /mnt/out, and if the function fails there, the run ends.
on_server() {
	[ "$NGUESTS" = 2 ] || { "$@"; return; }
	asked=$((asked + 1))
	echo "$*" >"/mnt/out/ask$asked"
	eventually 60 test -e "/mnt/out/done$asked"
}
asked=0

# obey: runs what the other guest asks for, until that is `end`.
obey() {
	local words=()
	while [ "${words[*]}" != end ]; do
		asked=$((asked + 1))
		until [ -s "/mnt/out/ask$asked" ]; do nap 0.1; done
		read -ra words <"/mnt/out/ask$asked"
		[ "${words[*]}" = end ] || "${words[@]}"
		: >"/mnt/out/done$asked"
	done
}

load_modules siw
# A machine loads it when it boots. QEMU would emulate its instructions.
[[ $(uname -r) != *-uml ]] || modprobe aesni_intel
[[ " $DEVICES " != *' rxe '* ]] || load_modules rdma_rxe
loaded=''
device siw siw
device rxe rxe
exchange "${modules[0]}"
if [ "$GUEST" = "$NGUESTS" ]; then
	"$VERBS_DIR/rbench" -s >"$TMP/server" 2>&1 &
	server=$!
	STARTED=$server
	wait_listen 18550
fi
if [ "$GUEST" = 2 ]; then
	obey
	kill "$server"
	finish
fi
# Returns when it can serve.
on_server true
if [ "${PROFILE:-0}" = 1 ]; then
	cat /proc/kallsyms >/mnt/out/kallsyms
	touch /mnt/out/kallsyms.done
fi
for mtu in $MTUS; do
	mtu "$mtu"
	for case in $TESTS; do
		for ((round = 0; round < ROUNDS; round++)); do
			for kind in siw rxe tcp tcpt least least1; do
				[[ " $DEVICES " != *" $kind "* ]] || measure "$kind" -
			done
			for ((i = 0; i < ${#modules[@]}; i++)); do
				module=${modules[round % 2 ? ${#modules[@]} - 1 - i : i]}
				on_server exchange "$module"
				exchange "$module"
				for kind in $DEVICES; do
					[[ $kind =~ ^(siw|rxe|tcpt?|least1?)$ ]] || measure "$kind" "$module"
				done
			done
		done
	done
done
if [ "$NGUESTS" = 1 ]; then kill "$server"; else on_server end; fi
finish
