#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# SMB Direct, client and server (ksmbd) of the kernel, on one device. Debian's kernel is built
# without, so this suite runs in the debug kernel and in User-Mode Linux. It needs the guest root
# `stacks`, which has the daemon of ksmbd.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=files.sh
. "$(dirname "$0")/files.sh"

CONF=$TMP/ksmbd.conf USERS=$TMP/users
# Where ksmbd listens on iWARP devices.
SMB_PORT=5445

server_up() {
	cat >"$CONF" <<-END
		[global]
			server multi channel support = yes
		[disk]
			path = $SERVED
			read only = no
			force user = root
	END
	touch "$USERS"
	modprobe ksmbd
	ksmbd.adduser -C "$CONF" -P "$USERS" -a -p secret somebody
	start - "$TMP/mountd" ksmbd.mountd -C "$CONF" -P "$USERS" -n
	wait_listen $SMB_PORT
}

server_down() {
	ksmbd.control --shutdown
	wait "$STARTED" || true
	within 30 rmmod ksmbd
}

# The server accepts only this way of connecting at that port.
mounted() {
	within 30 mount -i -t cifs -o "rdma,ip=$IP4_B,vers=3.1.1,username=somebody,password=secret,cache=none" \
		"//$IP4_B/disk" "$CLIENT"
	grep -q " $CLIENT cifs .*,rdma," /proc/mounts || die 'not over RDMA'
}

unmounted() { umount "$CLIENT"; }

# Long data moves by RDMA Reads and Writes of the server's, short data in messages.
direct_placement() {
	local before
	mounted
	before=$(counter "$DEV_A" rx_read_requests)
	head -c 1000 /dev/urandom >"$CLIENT/short"
	[ "$(counter "$DEV_A" rx_read_requests)" = "$before" ] || die 'a short file was read from the client'
	head -c 1048576 /dev/urandom >"$CLIENT/long"
	[ "$(counter "$DEV_A" rx_read_requests)" -gt "$before" ] || die 'a long file was not'
	unmounted
	rm "$SERVED"/*
}

cycles() {
	local i
	for ((i = 0; i < 10; i++)); do
		mounted
		unmounted
	done
	eventually 30 no_qp || die "left: $(rdma resource show qp)"
}

if ! modinfo smbdirect >/dev/null 2>&1; then
	skip "$SCRIPT/all" 'this kernel is built without SMB Direct'
	finish
fi
ends_up self
server_up
file_cases self
try direct_placement 60 direct_placement
try cycles 120 cycles
eventually 20 modprobe -qr cifs
server_down
ends_down
finish
