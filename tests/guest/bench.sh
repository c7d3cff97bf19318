#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Measures riwarp and siw side by side for tests/bench, in one guest. Both ends of a connection are
# on one device, so the path is the loopback interface and nothing else differs. The devices take
# turns, so that a slow spell of the machine affects all of them. Prints
#
#     row MTU PROGRAM SIZE DEVICE FIGURE     (MiB/s for _bw, us for _lat)
#
# Arguments NAME=VALUE: MTUS; PROGRAMS; SIZES; DEVICES (siw; riwarp: riwarp_siw with CRC off;
# riwarp-crc: the same with CRC on; riwarp-rxe: through librxe, CRC off); ROUNDS; BW64: requests in
# a run of 64 octets.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

MTUS=${MTUS:-65536 9000 1500}
PROGRAMS=${PROGRAMS:-ib_write_bw ib_send_bw ib_read_bw ib_write_lat ib_send_lat ib_read_lat}
SIZES=${SIZES:-64 4096 65536 1048576}
DEVICES=${DEVICES:-siw riwarp riwarp-crc}
ROUNDS=${ROUNDS:-3}

# device NUMBER TYPE: adds a dummy netdev with an address of this host, and an RDMA device on it.
device() {
	ip link add "b$1" type dummy
	NETDEVS_MADE+=("b$1")
	ip link set "b$1" up
	address_add - "b$1" "10.72.$1.1/24"
	link_add - "$2$1" "$2" "b$1"
}

# one DEVICE PROGRAM SIZE: runs one measurement and prints its row.
one() {
	local dev=riwarp_siw1 ip=10.72.1.1 crc=0 n
	case $1 in
	siw) dev=siw2 ip=10.72.2.1 ;;
	riwarp-rxe) dev=riwarp3 ip=10.72.3.1 ;;
	riwarp-crc) crc=1 ;;
	esac
	[ "$1" = siw ] || setting - "$dev" crc "$crc"
	n=$(iterations "$2" "$3")
	PORT=$((PORT + 1))
	DEV_A=$dev DEV_B=$dev IP4_B=$ip
	perftest_pair "$2" -s "$3" -n "$n" --bind_source_ip "$ip" >"$TMP/why" ||
		{ sed 's/^/# /' "$TMP/why"; not_ok "$2 $3 $1" "$(last_line "$TMP/why")"; return; }
	printf 'row\t%s\t%s\t%s\t%s\t%s\n' "$mtu" "$2" "$3" "$1" "$(perftest_figure "$2")"
}

# iterations PROGRAM SIZE: enough for at least half a second at siw's rate on an emulated processor.
iterations() {
	case $1/$2 in
	*_bw/64) echo "${BW64:-5000}" ;;
	*_bw/4096) echo 4000 ;;
	*_bw/65536) if [ "$mtu" = 1500 ]; then echo 800; else echo 3000; fi ;;
	*_bw/*) if [ "$mtu" = 1500 ]; then echo 60; else echo 250; fi ;;
	*_lat/64 | *_lat/4096) echo 10000 ;;
	*_lat/65536) if [ "$mtu" = 1500 ]; then echo 400; else echo 2000; fi ;;
	*_lat/*) if [ "$mtu" = 65536 ]; then echo 200; else echo 20; fi ;;
	esac
}

load_modules riwarp siw
NS_A=- NS_B=-
device 1 riwarp_siw
device 2 siw
device 3 riwarp
for mtu in $MTUS; do
	ip link set lo mtu "$mtu"
	for program in $PROGRAMS; do
		for size in $SIZES; do
			for ((round = 0; round < ROUNDS; round++)); do
				for device in $DEVICES; do one "$device" "$program" "$size"; done
			done
		done
	done
done
finish
