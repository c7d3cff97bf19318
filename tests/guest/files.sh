# SPDX-License-Identifier: GPL-2.0
# The cases for a file system that is mounted over RDMA, for the suites of NFS, 9p and SMB. Sourced.
# The suite defines
#
#   mounted     mounts at CLIENT what the server has at SERVED; fails if it is not over RDMA
#   unmounted
# shellcheck shell=bash

CLIENT=$TMP/client SERVED=$TMP/served
mkdir -p "$CLIENT" "$SERVED"

# Drops the caches, so that later reads of the client's file system go to the server.
forget() { sync; echo 3 >/proc/sys/vm/drop_caches; }

# Files of all lengths: some shorter than what is sent inline, some longer than one chunk.
files_are_right() {
	local octets lengths=(0 1 700 4095 65537 1048576 $((8388608 / SLOW + 3)))
	mounted
	for octets in "${lengths[@]}"; do
		head -c $octets /dev/urandom >"$TMP/file"
		cp "$TMP/file" "$CLIENT/to.$octets"
		cp "$TMP/file" "$SERVED/from.$octets"
		sync "$CLIENT/to.$octets"
		cmp "$TMP/file" "$SERVED/to.$octets" || die "wrong data written: $octets octets"
	done
	forget
	for octets in "${lengths[@]}"; do
		cmp "$CLIENT/from.$octets" "$SERVED/from.$octets" || die "wrong data read: $octets octets"
	done
	unmounted
	rm "$SERVED"/*
}

# Direct I/O on the process's own memory, which begins and ends within pages, and on parts of a
# file.
direct() {
	mounted
	head -c 1048576 /dev/urandom >"$TMP/file"
	# diod creates no file for direct I/O.
	: >"$CLIENT/direct"
	dd if="$TMP/file" of="$CLIENT/direct" bs=131072 oflag=direct status=none
	cmp "$TMP/file" "$SERVED/direct" || die 'wrong data written'
	dd if="$CLIENT/direct" of="$TMP/back" bs=262144 iflag=direct status=none
	cmp "$TMP/file" "$TMP/back" || die 'wrong data read'
	dd if="$CLIENT/direct" of="$TMP/back" bs=5000 iflag=direct status=none
	cmp "$TMP/file" "$TMP/back" || die 'wrong data read in odd pieces'
	unmounted
	rm "$SERVED"/*
}

# Responses that are too long to be sent inline although they hold no file data.
long_answers() {
	local names
	mounted
	mkdir "$SERVED/many"
	names=$(seq -f 'a file with quite a long name, so that not many fit into one answer %05g' 1 $((2000 / SLOW)))
	(cd "$SERVED/many" && xargs -d '\n' touch <<<"$names")
	# shellcheck disable=SC2012
	[ "$(ls "$CLIENT/many" | sort)" = "$names" ] || die 'the names differ'
	unmounted
	rm -r "$SERVED"/*
}

# The same for a symbolic link.
long_link() {
	mounted
	ln -s "$(printf '%01000d' 7)" "$SERVED/link"
	[ "$(readlink "$CLIENT/link")" = "$(readlink "$SERVED/link")" ] || die 'the link differs'
	unmounted
	rm "$SERVED/link"
}

# Two processes write and read pieces of random lengths, each of which fio compares.
checked_files() {
	mounted
	within $((30 * SLOW)) fio --name=checked --directory="$CLIENT" --numjobs=2 --ioengine=psync --direct=1 \
		--rw=randrw --bsrange=512-1m --blockalign=512 --size=$((8 / SLOW))M --verify=crc32c --verify_fatal=1 \
		--minimal >"$TMP/fio" 2>&1 || die "fio: $(last_line "$TMP/fio")"
	unmounted
	rm "$SERVED"/*
}

# file_cases NAME: the cases that each file system passes, called NAME/...
file_cases() {
	try "$1/files_are_right" 90 files_are_right
	try "$1/direct" 60 direct
	try "$1/long_answers" 60 long_answers
	try "$1/checked" 90 checked_files
}

# Keeps later cases from waiting for a server that this one has lost.
after_failure() { umount -f -l "$CLIENT" 2>/dev/null || true; }
