#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# storage_guests.sh [nvme|iser] [NAME=VALUE...]: a disk in guest 1, reached from guest 2, over riwarp and with
# siw as either end; then over riwarp with one fault after the other while data is on its way. To be run with
# qemu/run --guests 2 --out DIR. Guest 2 reports, and tells guest 1 what to do.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
case ${1:-nvme} in *=*) kind=nvme ;; *) kind=${1:-nvme} ;; esac
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"
# shellcheck source=storage_nvme.sh disable=SC1090
. "$(dirname "$0")/storage_$kind.sh"

NS_A=- NET_A=eth0 IP4_B=10.77.0.1

# --- orders --------------------------------------------------------------------------------------------

# order COMMAND...: has guest 1 run it, and waits for its end.
order() {
	local n=1 file status
	while [ -e "/mnt/out/order.$n" ]; do n=$((n + 1)); done
	file=/mnt/out/order.$n
	echo "$*" >"$file.new"
	mv "$file.new" "$file"
	[ "$1" != finish ] || return 0
	eventually 90 test -e "$file.done" || die "guest 1 has not done: $*"
	status=$(cat "$file.done")
	[ "$status" = 0 ] || { cat "$file.said"; die "guest 1: $*: $status"; }
}

# Guest 1: does as it is told until that is `finish`.
serve_orders() {
	local n=0 file words status
	while :; do
		n=$((n + 1)) status=0
		file=/mnt/out/order.$n
		eventually 600 test -e "$file" || { not_ok orders 'none came'; return; }
		read -r -a words <"$file"
		[ "${words[0]}" != finish ] || return 0
		( set -eu; "${words[@]}" ) >"$file.said" 2>&1 </dev/null || status=$?
		echo "$status" >"$file.done.new"
		mv "$file.done.new" "$file.done"
	done
}

# --- ends ----------------------------------------------------------------------------------------------

# device_up TYPE PEER: this guest's device.
device_up() {
	DEV_A=$1
	load_modules "${1%%_*}"
	link_add - "$DEV_A" "$1" "$NET_A"
	[ "$1/$2" != riwarp/siw ] || setting - "$DEV_A" peer_to_peer 0
}

device_down() { timeout --foreground 30 rdma link del "$1"; }

end_up() {
	device_up "$@"
	target_up
}

end_down() {
	target_down
	device_down "$1"
}

# roles TARGET HOST
roles() {
	order end_up "$1" "$2"
	device_up "$2" "$1"
	initiator_up
	DEPTHS=${DEPTHS:-1 32 128} CYCLES=${CYCLES:-3} disk_cases "$2_to_$1/"
	initiator_down
	device_down "$2"
	order end_down "$1"
}

# --- faults --------------------------------------------------------------------------------------------

# load_begin: verified I/O in the background.
load_begin() {
	fio --name=load --filename="$DISK" --direct=1 --ioengine=libaio --iodepth=8 --rw=randrw \
		--bsrange=512-64k --blockalign=512 --size=8M --io_size=64M --time_based --runtime="$1" \
		--randseed=2 --verify=crc32c --verify_fatal=1 --minimal >"$TMP/load" 2>&1 &
	LOAD=$!
	nap 1.5
}

# load_end good|any: it has to have come to an end, a good one or any, but never with other data.
load_end() {
	local status=0
	eventually 90 gone "$LOAD" || die "the load never ends: $(cat "/proc/$LOAD/stack")"
	wait "$LOAD" || status=$?
	! grep -qi 'verify' "$TMP/load" || die "other data: $(last_line "$TMP/load")"
	[ "$status" = 0 ] || [ "$1" = any ] || die "fio: $(last_line "$TMP/load")"
}

# again: whatever has happened, the disk can be had anew, and is a good one.
again() {
	disconnect || true
	eventually 60 disk_is_gone || die 'the disk stays'
	connected verified 8
}

disk_is_gone() { [ ! -b "$DISK" ]; }

# network NETEM...: what is sent by this guest suffers; all is well nevertheless.
network() {
	tc qdisc replace dev eth0 root netem "$@"
	connect
	load_begin 5
	load_end good
	tc qdisc del dev eth0 root
	disconnect
}

netdev_down_and_up() {
	connect
	load_begin 6
	ip link set eth0 down
	nap 1
	ip link set eth0 up
	load_end any
	again
}

# The reconnects of the host end soon, so that what is lost is lost within the test.
impatient() { if [ "$kind" = nvme ]; then connect -l 4 -c 1; else connect; fi; }

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
	order end_up riwarp riwarp
	again
}

target_removed() {
	impatient
	load_begin 6
	order target_down
	load_end any
	order target_up
	again
}

# Nothing that guest 1 says in its last moments arrives, and afterwards it knows nothing.
target_vanishes_and_comes_back() {
	impatient
	load_begin 6
	nft -f - <<-END
		table ip vanished { chain in { type filter hook input priority 0; ip saddr $IP4_B drop; }; }
	END
	order target_down
	order target_up
	nft delete table ip vanished
	load_end any
	again
}

faults() {
	order end_up riwarp riwarp
	device_up riwarp riwarp
	initiator_up
	try fault/loss 90 network loss 1%
	try fault/delay 90 network delay 50ms
	try fault/reordering 90 network delay 5ms reorder 25% 50%
	try fault/corruption 90 network corrupt 0.5%
	try fault/netdev_down_and_up 120 netdev_down_and_up
	try fault/device_of_host_deleted 120 device_of_host_deleted
	try fault/device_of_target_deleted 150 device_of_target_deleted
	try fault/target_removed 150 target_removed
	try fault/target_vanishes_and_comes_back 150 target_vanishes_and_comes_back
	initiator_down
	device_down riwarp
	order end_down riwarp
	try fault/unload 30 timeout --foreground 20 rmmod riwarp
	order timeout --foreground 20 rmmod riwarp
}

if [ "$GUEST" = 1 ]; then
	serve_orders
	finish
fi
for pair in ${PAIRS-riwarp/riwarp riwarp/siw siw/riwarp}; do roles "${pair%/*}" "${pair#*/}"; done
[ -n "${FAULTS-1}" ] && faults
order finish
finish
