# SPDX-License-Identifier: GPL-2.0
# For the suites of kernel storage: what is done with a disk that is reached over RDMA. The suite has
# `connect`, which sets DISK, `impatient`, which is the same for who does not wait long for what is lost,
# `disconnect`, and `each_end`, which runs a command where the target is and where the host is; LONGEST are the KiB of
# one command that the disk has to take, INLINE the octets that come along with it. Where everything is SLOW times
# slower, as many times fewer octets are moved in most cases. UNWATCHED are patterns of the cases that may begin
# although lockdep has stopped.
# shellcheck shell=bash

# shellcheck source=starve.sh
. "$GUEST_DIR/starve.sh"

TRACING=/sys/kernel/tracing
mountpoint -q $TRACING || mount -t tracefs tracefs $TRACING

# Both ends are here, if the suite does not say otherwise.
each_end() { "$@"; }

# sum_of_ends COMMAND...: of the numbers that it says there.
sum_of_ends() { "$@"; }

# widest COMMAND...: runs it with the longest commands that the initiator can be made to send.
widest() { "$@"; }

# disk_in_memory: /dev/ram0 of 64 MiB, for a target.
disk_in_memory() { modprobe brd rd_nr=1 rd_size=65536; }

# lockdep_works: whether a kernel that has lockdep still checks. It stops after its first report, and the one of the
# NVMe target's own locks (qemu/known-reports) does not fail the run.
lockdep_works() { [ ! -e /proc/lockdep_stats ] || grep -qx ' debug_locks: *1' /proc/lockdep_stats; }

UNWATCHED=${UNWATCHED:-}
before_case() {
	local pattern
	[ -e /proc/lockdep_stats ] || return 0
	for pattern in $UNWATCHED; do
		# shellcheck disable=SC2254
		case $1 in $pattern) return 0 ;; esac
	done
	each_end lockdep_works || die 'lockdep has stopped: this case belongs before what stops it, or in a guest of its own'
}

after_failure() {
	! mountpoint -q "$TMP/mnt" || umount -l "$TMP/mnt"
	disconnect
}

# connected COMMAND...: runs it while the disk is there.
connected() {
	connect
	"$@"
	disconnect
}

# Written and read back in pieces of other sizes, so that no octet may be in another's place.
blocks() {
	local size count
	dd if=/dev/urandom of="$TMP/data" bs=1M count=1 iflag=fullblock status=none
	for size in 512 3584 65536 1048576; do
		count=$((131072 / size / SLOW + 1))
		dd if=/dev/zero of="$DISK" bs=1M count=1 oflag=direct status=none
		dd if="$TMP/data" of="$DISK" bs="$size" count="$count" oflag=direct status=none
		dd if="$DISK" of="$TMP/back" bs=1M count=1 iflag=direct status=none
		cmp -n $((size * count)) "$TMP/data" "$TMP/back" || die "written in pieces of $size"
	done
}

# checked OPTION...: fio on the disk, each octet of what it writes compared. Two writes to the same place at once may
# come there in either order, so it has to wait between them. What it says of itself is in $TMP/fio.json.
checked() {
	fio --name=checked --direct=1 --blockalign=512 --randseed=1 --verify=crc32c --verify_fatal=1 \
		--serialize_overlap=1 "$@" --output-format=json --output="$TMP/fio.json" >"$TMP/fio" 2>&1 ||
		die "fio: $(last_line "$TMP/fio")"
}

# counted COMMAND...: runs it; DEEPEST is how many requests the disk had at once. The kernel notes the begin and the
# end of each, and it is the only disk here that has requests.
counted() {
	local trace=$TRACING/instances/disk
	mkdir -p "$trace"
	echo >"$trace/trace"
	printf 'block_rq_%s\n' issue complete requeue >"$trace/set_event"
	"$@"
	echo >"$trace/set_event"
	DEEPEST=$(awk '
		/ block_rq_issue: / { if (++n > deepest) deepest = n }
		/ block_rq_(complete|requeue): / { n-- }
		END { print deepest + 0 }' "$trace/trace")
	rmdir "$trace"
}

# verified DEPTH: random sizes at random places, each octet compared. Small ones where the queue is to be deep:
# then most of them have so many others on their way with them.
verified() {
	local sizes=512-$((256 / SLOW))k amount=$((4096 / SLOW))
	[ "$1" -lt 32 ] || sizes=512-16k amount=$((4096 + 4096 / SLOW))
	counted checked --filename="$DISK" --ioengine=libaio --iodepth="$1" --iodepth_batch="$1" --rw=randrw \
		--bsrange="$sizes" --size=8M --io_size="${amount}k"
	echo "$DEEPEST at once"
	mostly_with "$1"
	[ "$DEEPEST" -ge $((($1 + 3) / 4)) ] || die "$DEEPEST requests at once"
}

# mostly_with DEPTH: by fio's own account, of which the last level is that of 64 and more.
mostly_with() {
	local level=$1
	[ "$level" -lt 64 ] || level='>=64'
	awk -v level="$level" '
		/"iodepth_level"/ { inside = 1 }
		inside && split($0, part, /[":, ]+/) && part[2] == level { share = part[3] }
		inside && /}/ { inside = 0 }
		END { print share + 0 " % with " level; exit !(share > 50) }' "$TMP/fio.json" || die 'not so deep'
}

# large: requests of 1 MiB become commands as long as the disk takes them, at least LONGEST KiB; then sizes up
# to that at random.
large() {
	local limit way before after count=$((8 / SLOW))
	limit=$(cat "/sys/block/${DISK##*/}/queue/max_sectors_kb")
	echo "commands of $limit KiB"
	[ "$limit" -ge "$LONGEST" ] || die "commands of $limit KiB only"
	dd if=/dev/urandom of="$TMP/data" bs=1M count="$count" iflag=fullblock status=none
	for way in write read; do
		before=$(commands $way)
		if [ $way = write ]; then
			dd if="$TMP/data" of="$DISK" bs=1M oflag=direct status=none
		else
			dd if="$DISK" of="$TMP/back" bs=1M count="$count" iflag=direct status=none
		fi
		after=$(commands $way)
		[ $((after - before)) = $((count * ((1023 + limit) / limit))) ] || die "$((after - before)) commands to $way"
	done
	cmp "$TMP/data" "$TMP/back" || die 'other data'
	checked --filename="$DISK" --ioengine=libaio --iodepth=4 --rw=randrw --bsrange=4k-1m --size=16M \
		--io_size=$((16 / SLOW))M
}

# along: what the target is sent along with commands it does not fetch, which is INLINE octets of each; what is longer
# it reads out of the host's memory, as the host's device counts, once for each command at least.
along() {
	local before
	before=$(read_requests)
	eight_of "$INLINE"
	[ "$(read_requests)" = "$before" ] || die "$(($(read_requests) - before)) Read Requests for 8 of $INLINE"
	eight_of $((2 * INLINE))
	echo "$(($(read_requests) - before)) Read Requests for 8 of $((2 * INLINE))"
	[ "$(read_requests)" -ge $((before + 8)) ]
}

# eight_of OCTETS: so many commands with as much are written.
eight_of() {
	dd if=/dev/urandom of="$TMP/data" bs="$1" count=8 iflag=fullblock status=none
	dd if="$TMP/data" of="$DISK" bs="$1" oflag=direct status=none
	dd if="$DISK" of="$TMP/back" bs="$1" count=8 iflag=direct status=none
	cmp "$TMP/data" "$TMP/back" || die "other data in pieces of $1"
}

# Those that the device of the host has been sent. The counters are read anew after 10 ms.
read_requests() {
	nap 0.05
	cat "/sys/class/infiniband/$DEV_A/ports/1/hw_counters/rx_read_requests"
}

# commands read|write: how many the disk has done.
commands() {
	local numbers at=0
	[ "$1" = read ] || at=4
	read -r -a numbers <"/sys/block/${DISK##*/}/stat"
	echo "${numbers[at]}"
}

file_system() {
	mkfs.ext4 -q -F "$DISK"
	mkdir -p "$TMP/mnt"
	mount "$DISK" "$TMP/mnt"
	dd if=/dev/urandom of="$TMP/mnt/data" bs=100k count=$((40 / SLOW)) conv=fsync status=none
	cp "$TMP/mnt/data" "$TMP/data"
	synchronous
	umount "$TMP/mnt"
	disconnect
	connect
	mount "$DISK" "$TMP/mnt"
	cmp "$TMP/data" "$TMP/mnt/data" || die 'another file'
	cmp "$TMP/synchronous" "$TMP/mnt/synchronous" || die 'another file was synchronous'
	umount "$TMP/mnt"
}

# A file whose writer waits again and again for its last writes to be on the disk, which is told so if it has a cache.
synchronous() {
	local before after
	before=$(flushes)
	checked --filename="$TMP/mnt/synchronous" --direct=0 --ioengine=psync --rw=randwrite --bsrange=512-64k \
		--size=$((4 / SLOW))M --fsync=$((8 / SLOW))
	after=$(flushes)
	cp "$TMP/mnt/synchronous" "$TMP/synchronous"
	echo "$((after - before)) flushes"
	awk '/"sync"/ { inside = 1 } inside && /"total_ios"/ { n = $3 + 0; exit } END { print n " times"; exit !(n > 8) }' \
		"$TMP/fio.json" || die 'fio has not waited'
	[ "$(cat "/sys/block/${DISK##*/}/queue/write_cache")" = 'write through' ] || [ $((after - before)) -gt 8 ]
}

flushes() { awk '{ print $16 }' "/sys/block/${DISK##*/}/stat"; }

cycles() {
	local i
	for ((i = 0; i < $1; i++)); do connected true; done
	eventually 10 no_qp || die "left: $(rdma resource show qp)"
}

no_qp() { [ -z "$(rdma resource show qp link "$DEV_A")" ]; }

# load_begin SECONDS: I/O in the background, which is under way. What it reads is what it has written shortly before
# and now compares. It leaves the part of the disk with the mark alone.
load_begin() {
	mark
	LOAD_READS=$(commands read) LOAD_WRITES=$(commands write)
	rm -f "$TMP/load.status"
	load $(($1 * SLOW)) &
	eventually 30 under_way || die "no load: $(last_line "$TMP/load")"
}

load() {
	local status=0
	strace -f -qq --seccomp-bpf -e trace=io_pgetevents -e signal=none -o "$TMP/events" \
		fio --name=load --filename="$DISK" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite \
		--bsrange=512-64k --blockalign=512 --size=8M --time_based --runtime="$1" --randseed=2 \
		--verify=crc32c --verify_fatal=1 --verify_backlog=16 --serialize_overlap=1 --minimal >"$TMP/load" 2>&1 || status=$?
	echo $status >"$TMP/load.status"
}

under_way() { [ "$(load_reads)" -gt 20 ]; }
load_reads() { echo $(($(commands read) - LOAD_READS)); }

# load_end good|any: it has to have come to an end, a good one or any, but never with other data.
load_end() {
	local status
	eventually 90 test -s "$TMP/load.status" || die "the load never ends: $(cat "/proc/$(pgrep -o -x fio)/stack")"
	status=$(cat "$TMP/load.status")
	! grep -qi 'verify' "$TMP/load" || { [ "$1" = any ] && came_to_nothing; } ||
		die "other data: $(grep -i -m 3 'verify' "$TMP/load" | tr '\n' ' ')"
	[ "$1" = any ] || load_was_good "$status"
}

# A disk that has just gone has no end to read up to, so the kernel says that there were no octets, and fio, which does
# not look at the number, compares what was in its memory before.
came_to_nothing() { grep -q 'res=0, ' "$TMP/events"; }

# load_was_good STATUS: and has compared at least half of what it wrote.
load_was_good() {
	[ "$1" = 0 ] || die "fio: $(last_line "$TMP/load")"
	echo "$(load_reads) compared of $(($(commands write) - LOAD_WRITES))"
	[ $((2 * $(load_reads))) -ge $(($(commands write) - LOAD_WRITES)) ] || die 'little was compared'
}

# load_notices: the load is not satisfied when octets on the disk are others; they are spoilt where the disk
# is, /dev/ram0, so both ends have to be here.
load_notices() {
	local noticed=
	connect
	load_begin 20
	until [ -s "$TMP/load.status" ]; do
		dd if=/dev/urandom of=/dev/ram0 bs=1M count=8 oflag=direct conv=notrunc status=none
	done
	(load_end any) || noticed=1
	disconnect
	[ -n "$noticed" ] || die 'and nobody noticed'
}

# The mark: 1 MiB that says MARK and where it stands, beyond what the other cases write.
MARK=mark
mark() {
	mark_text
	dd if="$TMP/mark" of="$DISK" bs=1M seek=32 oflag=direct status=none
}

marked() {
	mark_text
	dd if="$DISK" of="$TMP/back" bs=1M skip=32 count=1 iflag=direct status=none
	cmp "$TMP/mark" "$TMP/back" || die 'the mark is another'
}

mark_text() { seq -f "$MARK %.0f" 200000 | head -c 1M >"$TMP/mark"; }

# again [lost]: whatever has happened, the disk can be had anew, with the mark if that is not lost with its
# memory, and is a good one.
again() {
	disconnect || true
	eventually 60 disk_is_gone || die 'the disk stays'
	[ "${1:-}" = lost ] || connected marked
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
	load_begin 6
	each_end starve_module 10 1000
	load_end any
	in_load=$(sum_of_ends starved_times 1000)
	for i in 1 2 3 4; do
		# Few: who logs in to iSER tries again and again for minutes.
		each_end starve_module 2 2
		disconnect || true
		(impatient) || true
		while_connecting=$((while_connecting + $(sum_of_ends starved_times 2)))
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
	[[ $DEV_A != riwarp* ]] || try "${1:-}along" 40 connected along
	try "${1:-}large" 90 widest connected large
	try "${1:-}file_system" 60 connected file_system
	try "${1:-}cycles" $((120 + 6 * ${CYCLES:-5})) cycles "${CYCLES:-5}"
}
