# SPDX-License-Identifier: GPL-2.0
# For the suites of kernel storage: what is done with a disk that is reached over RDMA. The suite has
# `connect`, which sets DISK, `impatient`, which is the same for who does not wait long for what is lost,
# `disconnect`, and `each_end`, which runs a command where the target is and where the host is.
# shellcheck shell=bash

# shellcheck source=starve.sh
. "$GUEST_DIR/starve.sh"

# Both ends are here, if the suite does not say otherwise.
each_end() { "$@"; }

# disk_in_memory: /dev/ram0 of 64 MiB, for a target.
disk_in_memory() { modprobe brd rd_nr=1 rd_size=65536; }

# connected COMMAND...: runs it while the disk is there.
connected() {
	connect
	"$@"
	disconnect
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
	eventually 10 no_qp || die "left: $(rdma resource show qp)"
}

no_qp() { [ -z "$(rdma resource show qp link "$DEV_A")" ]; }

# load_begin SECONDS: verified I/O in the background, which is under way.
load_begin() {
	fio --name=load --filename="$DISK" --direct=1 --ioengine=libaio --iodepth=8 --rw=randrw \
		--bsrange=512-64k --blockalign=512 --size=8M --io_size=64M --time_based --runtime="$1" \
		--randseed=2 --verify=crc32c --verify_fatal=1 --minimal >"$TMP/load" 2>&1 &
	LOAD=$!
	eventually 30 under_way || die "no load: $(last_line "$TMP/load")"
}

under_way() { awk '{ exit !($5 > 20) }' "/sys/block/${DISK##*/}/stat"; }

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

# starved: memory is refused to the module now and then, at each end of the storage, while data is on its way and
# while connections are made, of which some then fail. Whatever becomes of it, no data is wrong, and afterwards
# all is well.
starved() {
	local in_load while_connecting=0 i
	impatient
	each_end aim_at_module
	load_begin $((6 * SLOW))
	each_end starve_module 10 1000
	load_end any
	in_load=$(starved_times 1000)
	for i in 1 2 3 4; do
		# Few: who logs in to iSER tries again and again for minutes.
		each_end starve_module 2 2
		disconnect || true
		(impatient) || true
		while_connecting=$((while_connecting + $(starved_times 2)))
	done
	each_end feed
	again
	echo "$in_load failed under load, $while_connecting while connecting"
	[ "$in_load" -ge 20 ] && [ "$while_connecting" -ge 2 ]
}

# disk_cases [PREFIX]: the cases that every disk has to pass. DEPTHS are those of the verified I/O; CYCLES
# says how often the disk comes and goes.
disk_cases() {
	local depth
	try "${1:-}blocks" 60 connected blocks
	for depth in ${DEPTHS:-1 32}; do
		try "${1:-}verified_$depth" 90 connected verified "$depth"
	done
	try "${1:-}file_system" 60 connected file_system
	try "${1:-}cycles" $((120 + 6 * ${CYCLES:-5})) cycles "${CYCLES:-5}"
}
