#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# NFS over RDMA, client and server of the kernel. These consumers choose the addresses at which the
# peer accesses their regions, and read and write each other's memory in chunks. No user-space
# program of NFS runs: the script writes the answers to the server's upcalls into the kernel's
# caches first.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=files.sh
. "$(dirname "$0")/files.sh"

NFSD=$TMP/nfsd
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
	mkdir -p "$NFSD"
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

modprobe -a nfs nfsv4
for topology in ${TOPOLOGIES:-netns siw-server siw-client}; do
	ends_up "$topology"
	server_up
	file_cases "$topology"
	try "$topology/long_link" 60 long_link
	[ "$topology" != netns ] || try "$topology/device_comes_back" 120 device_comes_back
	server_down
	ends_down
done
finish
