# SPDX-License-Identifier: GPL-2.0
# The cases for a disk that is reached over RDMA, for the suites of kernel storage. Sourced. The
# suite defines
#
#   connect     connects the disk and sets DISK
#   impatient   the same, but gives up lost connections within seconds
#   disconnect
#   each_end    runs a command where the target is and where the host is
#   LONGEST     the KiB that one command to the disk must be able to carry
#   INLINE      the octets that the initiator sends along with a command
#   UNWATCHED   patterns of the cases that may begin although lockdep has stopped
#
# In a kernel that is SLOW times slower, most cases move as many times fewer octets.
# shellcheck shell=bash

# shellcheck source=starve.sh
. "$GUEST_DIR/starve.sh"

TRACING=/sys/kernel/tracing
# User-Mode Linux has no trace events.
can_trace() { grep -qw tracefs /proc/filesystems; }
! can_trace || mountpoint -q $TRACING || mount -t tracefs tracefs $TRACING

# By default both ends are in this guest.
each_end() { "$@"; }

# sum_of_ends COMMAND...: prints the sum of the numbers that the command prints at each end.
sum_of_ends() { "$@"; }

# widest COMMAND...: runs it with the initiator's limit on the length of commands raised.
widest() { "$@"; }

# disk_in_memory: makes /dev/ram0 of 64 MiB, for a target.
disk_in_memory() {
	modprobe brd rd_nr=1 rd_size=65536 2>/dev/null && return
	# User-Mode Linux has no brd.
	modprobe null_blk nr_devices=1 gb=1 memory_backed=1
	ln -sf nullb0 /dev/ram0
}

# lockdep_works: succeeds if lockdep still checks, or the kernel has none. lockdep stops after its
# first report, and the known report on the NVMe target's own locks (qemu/known-reports) does not
# fail the run.
lockdep_works() { [ ! -e /proc/lockdep_stats ] || grep -qx ' debug_locks: *1' /proc/lockdep_stats; }

UNWATCHED=${UNWATCHED:-}
before_case() {
	local pattern
	[ -e /proc/lockdep_stats ] || return 0
	for pattern in $UNWATCHED; do
		# shellcheck disable=SC2254
		case $1 in $pattern) return 0 ;; esac
	done
	each_end lockdep_works || die 'lockdep has stopped: run this case earlier, or in a guest of its own'
}

after_failure() {
	! mountpoint -q "$TMP/mnt" || umount -l "$TMP/mnt"
	disconnect
}

# connected COMMAND...: runs it with the disk connected.
connected() {
	connect
	"$@"
	disconnect
}

# Writes and reads in pieces of different sizes, so that a misplaced octet is found.
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

# checked OPTION...: runs fio on the disk, which compares each octet that it writes. Overlapping
# writes may be done in either order, so fio serializes them. Its report is in $TMP/fio.json.
checked() {
	fio --name=checked --direct=1 --blockalign=512 --randseed=1 --verify=crc32c --verify_fatal=1 \
		--serialize_overlap=1 "$@" --output-format=json --output="$TMP/fio.json" >"$TMP/fio" 2>&1 ||
		die "fio: $(last_line "$TMP/fio")"
}

# counted COMMAND...: runs it; DEEPEST is the largest number of requests that the disk had at once.
# The kernel traces the begin and the end of each; no other disk here has requests. Without traces
# it is left empty.
counted() {
	local trace=$TRACING/instances/disk
	DEEPEST=''
	can_trace || { "$@"; return; }
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

# verified DEPTH: random sizes at random offsets, each octet compared. Deep queues get small
# requests, so that most of them are outstanding together.
verified() {
	local sizes=512-$((256 / SLOW))k amount=$((4096 / SLOW)) share=4
	[ "$1" -lt 32 ] || sizes=512-16k amount=$((4096 + 4096 / SLOW))
	counted checked --filename="$DISK" --ioengine=libaio --iodepth="$1" --iodepth_batch="$1" --rw=randrw \
		--bsrange="$sizes" --size=8M --io_size="${amount}k"
	echo "$DEEPEST at once"
	mostly_with "$1"
	[ "$DEEPEST" ] || return 0
	# With PREEMPT_RT the worker that sends a request preempts whoever would submit the next one.
	[[ $(uname -v) != *PREEMPT_RT* ]] || share=8
	[ "$DEEPEST" -ge $((($1 + share - 1) / share)) ] || die "$DEEPEST requests at once"
}

# mostly_with DEPTH: checks in fio's report that most requests were issued at this depth; the last
# level of the report is 64 and more.
mostly_with() {
	local level=$1
	[ "$level" -lt 64 ] || level='>=64'
	awk -v level="$level" '
		/"iodepth_level"/ { inside = 1 }
		inside && split($0, part, /[":, ]+/) && part[2] == level { share = part[3] }
		inside && /}/ { inside = 0 }
		END { print share + 0 " % with " level; exit !(share > 50) }' "$TMP/fio.json" || die 'most requests were issued at another depth'
}

# large: the kernel splits requests of 1 MiB into commands of the disk's maximum length, which is at
# least LONGEST KiB; then random sizes up to 1 MiB.
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
	cmp "$TMP/data" "$TMP/back" || die 'the data differ'
	checked --filename="$DISK" --ioengine=libaio --iodepth=4 --rw=randrw --bsrange=4k-1m --size=16M \
		--io_size=$((16 / SLOW))M
}

# along: the target fetches no data that the initiator sends along with a command, which is INLINE
# octets. Longer data it reads from the host's memory, at least once for each command, by the count
# of the host's device.
along() {
	local before
	before=$(read_requests)
	eight_of "$INLINE"
	[ "$(read_requests)" = "$before" ] || die "$(($(read_requests) - before)) Read Requests for 8 of $INLINE"
	eight_of $((2 * INLINE))
	echo "$(($(read_requests) - before)) Read Requests for 8 of $((2 * INLINE))"
	[ "$(read_requests)" -ge $((before + 8)) ]
}

# eight_of OCTETS: writes eight commands of this length, and reads them back.
eight_of() {
	dd if=/dev/urandom of="$TMP/data" bs="$1" count=8 iflag=fullblock status=none
	dd if="$TMP/data" of="$DISK" bs="$1" oflag=direct status=none
	dd if="$DISK" of="$TMP/back" bs="$1" count=8 iflag=direct status=none
	cmp "$TMP/data" "$TMP/back" || die "the data differ in pieces of $1"
}

# Prints how many Read Requests the host's device has received.
read_requests() { counter "$DEV_A" rx_read_requests; }

# commands read|write: prints how many the disk has completed.
commands() {
	local numbers at=0
	[ "$1" = read ] || at=4
	read -r -a numbers <"/sys/block/${DISK##*/}/stat"
	echo "${numbers[at]}"
}

file_system() {
	modprobe ext4 || { disconnect; skip_case 'this kernel has no ext4'; }
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
	cmp "$TMP/data" "$TMP/mnt/data" || die 'the file differs'
	cmp "$TMP/synchronous" "$TMP/mnt/synchronous" || die 'the synchronous file differs'
	umount "$TMP/mnt"
}

# A file whose writer often waits until its data is on the disk; a disk with a write cache gets
# flushes.
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

# load_begin SECONDS: starts I/O in the background, and waits until it runs. It reads what it wrote
# shortly before, and compares. It leaves the mark's part of the disk alone.
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

# load_end good|any: waits for the end of the load, which must be a good one, or may be any, but
# never one with wrong data.
load_end() {
	local status
	eventually 90 test -s "$TMP/load.status" || die "the load does not end: $(cat "/proc/$(pgrep -o -x fio)/stack")"
	status=$(cat "$TMP/load.status")
	! grep -qi 'verify' "$TMP/load" || { [ "$1" = any ] && came_to_nothing; } ||
		die "the data differ: $(grep -i -m 3 'verify' "$TMP/load" | tr '\n' ' ')"
	[ "$1" = any ] || load_was_good "$status"
}

# A disk that was just removed has size 0, so the kernel reports that it read 0 octets. fio ignores
# that number and compares what was in its memory before.
came_to_nothing() { grep -q 'res=0, ' "$TMP/events"; }

# load_was_good STATUS: the load has succeeded, and compared at least half of what it wrote.
load_was_good() {
	[ "$1" = 0 ] || die "fio: $(last_line "$TMP/load")"
	echo "$(load_reads) compared of $(($(commands write) - LOAD_WRITES))"
	[ $((2 * $(load_reads))) -ge $(($(commands write) - LOAD_WRITES)) ] || die 'little was compared'
}

# load_notices: the load fails if octets on the disk change. They are overwritten in /dev/ram0, the
# target's memory, so both ends must be in this guest.
load_notices() {
	local noticed=
	connect
	load_begin 20
	until [ -s "$TMP/load.status" ]; do
		dd if=/dev/urandom of=/dev/ram0 bs=1M count=8 oflag=direct conv=notrunc status=none
	done
	(load_end any) || noticed=1
	disconnect
	[ -n "$noticed" ] || die 'the load did not fail'
}

# The mark: 1 MiB of lines with MARK and a number, beyond what the other cases write.
MARK=mark
mark() {
	mark_text
	dd if="$TMP/mark" of="$DISK" bs=1M seek=32 oflag=direct status=none
}

marked() {
	mark_text
	dd if="$DISK" of="$TMP/back" bs=1M skip=32 count=1 iflag=direct status=none
	cmp "$TMP/mark" "$TMP/back" || die 'the mark has changed'
}

mark_text() { seq -f "$MARK %.0f" 200000 | head -c 1M >"$TMP/mark"; }

# again [lost]: connects the disk anew after a fault; verified I/O works, and the mark is there
# unless it was lost with the target's memory.
again() {
	disconnect || true
	eventually 60 disk_is_gone || die 'the disk is still there'
	[ "${1:-}" = lost ] || connected marked
	connected verified 8
}

# first_disk PATH...: sets DISK to the first device in sysfs, of these, that has its node in /dev.
first_disk() {
	local block
	for block; do
		DISK=/dev/${block##*/}
		[ ! -b "$DISK" ] || return 0
	done
	return 1
}

disk_is_gone() { [ ! -b "$DISK" ]; }

# starved: some allocations of the module fail, at each end of the storage, under load and while
# connecting, which then may fail. No data is wrong, and afterwards all works.
starved() {
	local in_load while_connecting=0 i
	impatient
	each_end aim_at_module
	load_begin 6
	each_end starve_module 10 1000
	load_end any
	in_load=$(sum_of_ends starved_times 1000)
	for i in 1 2 3 4; do
		# Few, because iSER's initiator retries a login for minutes.
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

# kept_waiting REPORT: with the disk connected, by a consumer that gives a silent peer up after some
# seconds: its next message waits in TCP for longer, as one does that finds no receive. The kernel
# logs REPORT then, the consumer connects again, and the data is right.
kept_waiting() {
	local file=/sys/class/infiniband/$DEV_A/inject before
	before=$(dmesg | grep -c "$1" || true)
	echo "on=recv scope=device op=send nth=1 do=delay=$((15 * SLOW))s" >"$file"
	eventually 40 has_logged "$1" $((before + 1)) || die "the kernel has not logged: $1"
	verified 4
	cat "$file"
	echo clear >"$file"
}
has_logged() { [ "$(dmesg | grep -c "$1" || true)" -ge "$2" ]; }

# disk_cases [PREFIX]: the cases that every disk must pass. DEPTHS are the queue depths of the
# verified I/O; CYCLES is how often the disk is connected and disconnected.
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
