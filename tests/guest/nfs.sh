#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# NFS over RDMA, client and server of the kernel. These consumers choose the addresses at which the
# peer accesses their regions, and read and write each other's memory in chunks. No user-space
# program of NFS runs: the script writes the answers to the server's upcalls into the kernel's
# caches first.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

CLIENT=$TMP/client SERVED=$TMP/served NFSD=$TMP/nfsd
FOR_EVER=2147483647

# at NETNS COMMAND...: as in_ns, but mounts stay (ip netns exec has its own mount namespace).
at() {
	local where=$1
	shift
	if [ "$where" = - ]; then "$@"; else nsenter "--net=/run/netns/$where" "$@"; fi
}

# tell FILE WORD...: writes the words to a file; exported for the shells that `at` runs.
tell() { echo "${*:2}" >"$1"; }
export -f tell

# Exports a file system in memory to everybody, as the root of NFS version 4, over RDMA only. Lease
# and grace period are the shortest possible: the server waits so long for clients of an earlier
# server.
server_up() {
	modprobe -a nfsd rpcrdma
	mkdir -p "$SERVED" "$NFSD" "$CLIENT"
	mount -t tmpfs -o size=64m served "$SERVED"
	at "$NS_B" mount -t nfsd nfsd "$NFSD"
	# insecure, no_root_squash, async, no_subtree_check, fsid=0
	at "$NS_B" bash -eu -c "
		tell $NFSD/versions -2 -3 +4 +4.1 +4.2
		tell $NFSD/nfsv4leasetime 10
		tell $NFSD/nfsv4gracetime 10
		tell /proc/net/rpc/auth.unix.ip/channel nfsd $IP4_A $FOR_EVER '*'
		tell /proc/net/rpc/nfsd.export/channel '*' $SERVED $FOR_EVER $((0x2 | 0x10 | 0x400 | 0x2000)) 65534 65534 0
		tell /proc/net/rpc/nfsd.fh/channel '*' 1 '\x00000000' $FOR_EVER $SERVED
		tell $NFSD/portlist rdma 20049
		tell $NFSD/threads 4"
}

server_down() {
	at "$NS_B" bash -eu -c "tell $NFSD/threads 0"
	at "$NS_B" umount "$NFSD"
	umount "$SERVED"
}

mounted() {
	at "$NS_A" mount -i -t nfs4 -o "vers=4.2,proto=rdma,port=20049,addr=$IP4_B,clientaddr=$IP4_A,sec=sys" \
		"$IP4_B:/" "$CLIENT"
	grep -q " $CLIENT nfs4 .*proto=rdma" /proc/mounts || die 'not over RDMA'
}

unmounted() { umount "$CLIENT"; }

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
	ln -s "$(printf '%01000d' 7)" "$SERVED/link"
	[ "$(readlink "$CLIENT/link")" = "$(readlink "$SERVED/link")" ] || die 'the link differs'
	unmounted
	rm -r "$SERVED"/*
}

# The server's device is deleted while the client writes. The client continues once a new device
# exists, and the data is right.
device_comes_back() {
	mounted
	head -c $((16777216 / SLOW)) /dev/urandom >"$TMP/file"
	dd if="$TMP/file" of="$CLIENT/file" bs=65536 oflag=direct status=none &
	eventually 20 test -s "$SERVED/file" || die 'nothing is written'
	link_del "$NS_B" "$DEV_B"
	kill -0 $! || die 'written too early'
	link_add "$NS_B" "$DEV_B" "$TYPE_B" "$NET_B"
	wait $! || die "dd: $?"
	cmp "$TMP/file" "$SERVED/file" || die 'wrong data written'
	unmounted
	rm "$SERVED"/*
}

# Keeps later cases from waiting for a server that this one has lost.
after_failure() { umount -f -l "$CLIENT" 2>/dev/null || true; }

modprobe -a nfs nfsv4
for topology in ${TOPOLOGIES:-netns siw-server siw-client}; do
	ends_up "$topology"
	server_up
	try "$topology/files_are_right" 90 files_are_right
	try "$topology/direct" 60 direct
	try "$topology/long_answers" 60 long_answers
	[ "$topology" != netns ] || try "$topology/device_comes_back" 120 device_comes_back
	server_down
	ends_down
done
finish
