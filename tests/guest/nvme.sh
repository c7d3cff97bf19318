#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# NVMe over Fabrics, host and target of the kernel: the consumers that register memory fast, and have it
# invalidated by the peer. Both are on one device of the initial namespace, where they have to be.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

TARGET=/sys/kernel/config/nvmet
NQN=nqn.2014-08.org.nvmexpress:riwarp
DISK=/dev/nvme0n1
SERVICE=4420

# target_up [PARAMETER of nvmet-rdma...]: a disk in memory, for whoever comes.
target_up() {
	local subsystem=$TARGET/subsystems/$NQN port=$TARGET/ports/1
	modprobe -a nvmet nvme-rdma
	modprobe nvmet-rdma "$@"
	modprobe brd rd_nr=1 rd_size=65536
	mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
	mkdir "$subsystem" "$subsystem/namespaces/1" "$port"
	echo 1 >"$subsystem/attr_allow_any_host"
	echo /dev/ram0 >"$subsystem/namespaces/1/device_path"
	echo 1 >"$subsystem/namespaces/1/enable"
	echo rdma >"$port/addr_trtype"
	echo ipv4 >"$port/addr_adrfam"
	echo "$IP4_B" >"$port/addr_traddr"
	echo "$SERVICE" >"$port/addr_trsvcid"
	ln -s "$subsystem" "$port/subsystems/$NQN"
}

target_down() {
	local subsystem=$TARGET/subsystems/$NQN port=$TARGET/ports/1
	rm "$port/subsystems/$NQN"
	rmdir "$port" "$subsystem/namespaces/1" "$subsystem"
	timeout --foreground 30 rmmod nvmet-rdma
}

# nvme_rdma SECONDS COMMAND [OPTIONS...]
nvme_rdma() {
	local limit=$1 command=$2
	shift 2
	timeout --foreground "$limit" nvme "$command" -t rdma -a "$IP4_B" -s "$SERVICE" "$@"
}

connect() {
	nvme_rdma 30 connect -n "$NQN" "$@"
	eventually 10 test -b "$DISK" || die 'no disk'
}

disconnect() { timeout --foreground 30 nvme disconnect -n "$NQN"; }

# connected COMMAND...: runs it while the disk is there.
connected() {
	connect -i 2
	"$@"
	disconnect
}

discover() {
	nvme_rdma 30 discover >"$TMP/found"
	grep -q "subnqn: *$NQN" "$TMP/found" || die "found: $(cat "$TMP/found")"
}

# Written and read back in pieces of other sizes, so that no octet may be in another's place.
blocks() {
	local size count
	dd if=/dev/urandom of="$TMP/data" bs=2M count=1 iflag=fullblock status=none
	for size in 512 3584 65536 1048576; do
		count=$((131072 / size + 1))
		dd if=/dev/zero of="$DISK" bs=2M count=1 oflag=direct status=none
		dd if="$TMP/data" of="$DISK" bs="$size" count="$count" oflag=direct status=none
		dd if="$DISK" of="$TMP/back" bs=2M count=1 iflag=direct status=none
		cmp -n $((size * count)) "$TMP/data" "$TMP/back" || die "written in pieces of $size"
	done
}

# verified DEPTH: random sizes at random places, each octet compared.
verified() {
	fio --name=verified --filename="$DISK" --direct=1 --ioengine=libaio --iodepth="$1" --rw=randrw \
		--bsrange=512-256k --blockalign=512 --size=8M --io_size=4M --randseed=1 \
		--verify=crc32c --verify_fatal=1 --minimal >"$TMP/fio" 2>&1 || die "fio: $(last_line "$TMP/fio")"
}

file_system() {
	mkfs.ext4 -q -F "$DISK"
	mkdir -p "$TMP/mnt"
	mount "$DISK" "$TMP/mnt"
	dd if=/dev/urandom of="$TMP/mnt/data" bs=100k count=40 conv=fsync status=none
	cp "$TMP/mnt/data" "$TMP/data"
	umount "$TMP/mnt"
	disconnect
	connect
	mount "$DISK" "$TMP/mnt"
	cmp "$TMP/data" "$TMP/mnt/data" || die 'another file'
	umount "$TMP/mnt"
}

cycles() {
	local i
	for ((i = 0; i < $1; i++)); do connected true; done
	eventually 10 kernel_has_no_qp || die "left: $(rdma resource show qp)"
}

kernel_has_no_qp() { ! rdma resource show qp link "$DEV_A" | grep -q 'comm \[nvme'; }

# The target takes the host's keys back as it answers, and the host does not find out otherwise.
remote_invalidation() {
	local tracing=/sys/kernel/tracing
	mountpoint -q $tracing || mount -t tracefs tracefs $tracing
	{
		echo 'p:answered nvme_rdma:nvme_rdma_recv_done'
		echo 'p:had_to_invalidate nvme_rdma:nvme_rdma_inv_rkey_done'
	} >$tracing/kprobe_events
	echo 1 >$tracing/events/kprobes/enable
	connected verified 4
	echo 0 >$tracing/events/kprobes/enable
	cat $tracing/kprobe_profile
	awk '{ n[$1] = $2 } END { exit !(n["answered"] > 100 && n["had_to_invalidate"] == 0) }' \
		$tracing/kprobe_profile || die "$(tr '\n' ' ' <$tracing/kprobe_profile)"
	echo >$tracing/kprobe_events
}

with_shared_receive_queues() {
	target_down
	target_up use_srq=1
	connected verified 8
}

# The device goes while data is on its way; then everything can be taken down.
device_deleted_under_load() {
	local load
	connect -i 2 -l 3 -c 1
	dd if="$DISK" of=/dev/null bs=64k iflag=direct status=none 2>/dev/null &
	load=$!
	sleep 0.3
	timeout --foreground 30 rdma link del "$DEV_A" || die "rdma link del: $?"
	eventually 30 gone "$load" || die 'a read that never ends'
	disconnect || true
	eventually 30 test ! -e "$DISK" || die 'the disk stays'
}

ends_up self
target_up
try discover 40 discover
try blocks 60 connected blocks
for depth in 1 32; do
	try "verified_$depth" 90 connected verified "$depth"
done
try file_system 60 connected file_system
try cycles 120 cycles "${CYCLES:-5}"
try remote_invalidation 90 remote_invalidation
try with_shared_receive_queues 90 with_shared_receive_queues
try device_deleted_under_load 120 device_deleted_under_load
target_down
finish
