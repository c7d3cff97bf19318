# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: 9p over RDMA, with the kernel's client and diod (built by qemu/root-stacks,
# since Debian's is without RDMA). The client connects in the initial namespace only.

# shellcheck source=tests/guest/files.sh
. "$GUEST_DIR/files.sh"

# Its port for RDMA, which cannot be set.
DIOD_PORT=5640

# Not as root, as whom diod changes its credentials after it has opened rdma_cm, which then refuses
# its calls.
diod_up() {
	chmod 755 "$TMP"
	chown nobody "$SERVED"
	ulimit -l unlimited
	start - "$TMP/diod" setpriv --reuid nobody --regid nogroup --clear-groups /usr/lib/diod/diod \
		--foreground --no-auth --listen "127.0.0.1:$PORT" --export "$SERVED"
	DIOD=$STARTED
	wait_listen "$DIOD_PORT" || die "diod: $(last_line "$TMP/diod")"
}

# SIGTERM makes it wait for one more connection.
diod_down() {
	kill -KILL "$DIOD"
	wait "$DIOD" 2>/dev/null || true
}

mounted() {
	within 20 mount -i -t 9p -o "trans=rdma,aname=$SERVED,uname=nobody,access=any,msize=65536,version=9p2000.L" \
		"$IP4_B" "$CLIENT"
	grep -q " $CLIENT 9p .*trans=rdma" /proc/mounts || die 'not over RDMA'
}

unmounted() { umount "$CLIENT"; }

version 9p diod-rdma
modprobe -a 9p 9pnet_rdma
ends_up self
diod_up
file_cases "$TYPE/9p"
try "$TYPE/9p/long_link" 60 long_link
diod_down
ends_down
