#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# demo_storage.sh nvme|iser: a disk in memory, with its target and its host on one kernel, over
# riwarp, siw and TCP in turn, on the loopback interface with Ethernet's MTU. For each: a file
# system with verified files, figures, then the device is removed and the disk connected again.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"
# shellcheck source=storage_nvme.sh disable=SC1090
. "$(dirname "$0")/storage_$1.sh"

# terse FIELD OPTIONS...: runs fio on the disk for two seconds and prints a field of its output.
terse() {
	local field=$1
	shift
	fio --name=figure --filename="$DISK" --direct=1 --ioengine=libaio --size=32M --time_based \
		--runtime=2 --minimal --terse-version=3 "$@" | cut -d';' -f"$field"
}

KIBPS_READ=7 KIBPS_WRITE=48 LATENCY_READ=40

figures() {
	local read write latency
	read=$(terse $KIBPS_READ --rw=read --bs=128k --iodepth=8)
	write=$(terse $KIBPS_WRITE --rw=write --bs=128k --iodepth=8)
	latency=$(terse $LATENCY_READ --rw=randread --bs=4k --iodepth=1)
	printf '%-16s%10d%10d%10.0f    ' "$1" $((read / 1024)) $((write / 1024)) "$latency"
}

# Removes the device: the host loses the disk and the target its port. Makes a new device, sets up
# the target and connects again.
replug() {
	if [ "$FABRIC" = rdma ]; then
		rdma link del "$DEV_A"
		eventually 30 test ! -b "$DISK" || disconnect
		target_down
		link_add - "$DEV_A" "$TYPE" "$NET_A"
		target_up
	else
		disconnect
	fi
	connect
}

# show TITLE: runs all of it with one transport.
show() {
	{
		target_up
		initiator_up
		connect
	} >"$TMP/said"
	figures "$1"
	mkfs.ext4 -q -F "$DISK"
	mkdir -p "$TMP/mnt"
	mount "$DISK" "$TMP/mnt"
	fio --name=verified --directory="$TMP/mnt" --size=8M --rw=randwrite --bsrange=512-64k --blockalign=512 \
		--verify=crc32c --verify_fatal=1 --minimal >"$TMP/fio"
	(cd "$TMP/mnt" && sha256sum verified.0.0) >"$TMP/sum"
	umount "$TMP/mnt"
	replug >"$TMP/said"
	mount "$DISK" "$TMP/mnt"
	(cd "$TMP/mnt" && sha256sum --quiet -c "$TMP/sum")
	umount "$TMP/mnt"
	{
		disconnect
		initiator_down
		target_down
	} >"$TMP/said"
	echo 'verified, the same after a reconnect'
}

printf '%-16s%10s%10s%10s\n' "$1 over" 'read' 'write' 'latency'
printf '%-16s%10s%10s%10s\n' '' 'MiB/s' 'MiB/s' 'us'
for over in riwarp siw TCP; do
	FABRIC=rdma TYPE=$over
	[ "$over" != TCP ] || FABRIC=tcp TYPE=riwarp
	ends_up self 1500 >"$TMP/ends"
	show "$over"
	ends_down
done
