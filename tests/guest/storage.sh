# SPDX-License-Identifier: GPL-2.0
# For the suites of kernel storage: what is done with a disk that is reached over RDMA. The suite has
# `connect`, which sets DISK, and `disconnect`.
# shellcheck shell=bash

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

# disk_cases [PREFIX]: the cases that every disk has to pass. DEPTHS are those of the verified I/O; CYCLES
# says how often the disk comes and goes.
disk_cases() {
	local depth
	try "${1:-}blocks" 60 connected blocks
	for depth in ${DEPTHS:-1 32}; do
		try "${1:-}verified_$depth" 90 connected verified "$depth"
	done
	try "${1:-}file_system" 60 connected file_system
	try "${1:-}cycles" 120 cycles "${CYCLES:-5}"
}
