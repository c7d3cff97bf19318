# SPDX-License-Identifier: GPL-2.0
# NVMe over Fabrics, host and target of the kernel. Sourced. FABRIC is rdma or tcp; the target is at
# IP4_B.
# shellcheck shell=bash

TARGET=/sys/kernel/config/nvmet
NQN=nqn.2014-08.org.nvmexpress:riwarp
DISK=/dev/nvme0n1
FABRIC=rdma
SERVICE=4420
# The target takes a page at least, and the host sends no more than it takes.
PAGE=$(getconf PAGESIZE)
INLINE=$((PAGE > 4096 ? PAGE : 4096))
LONGEST=1024

# target_up [PARAMETER of nvmet-FABRIC...]: serves a disk in memory to any host.
target_up() {
	modprobe "nvmet-$FABRIC" "$@"
	disk_in_memory
	mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
	subsystem_up /dev/ram0
	port_up 1
}

# subsystem_up DISK: makes the subsystem NQN, whose one namespace is DISK.
subsystem_up() {
	local subsystem=$TARGET/subsystems/$NQN
	mkdir "$subsystem" "$subsystem/namespaces/1"
	echo 1 >"$subsystem/attr_allow_any_host"
	echo "$1" >"$subsystem/namespaces/1/device_path"
	echo 1 >"$subsystem/namespaces/1/enable"
}

# port_up NUMBER [tls1.3]: serves the subsystem by FABRIC at IP4_B and SERVICE.
port_up() {
	local port=$TARGET/ports/$1
	mkdir "$port"
	echo "$FABRIC" >"$port/addr_trtype"
	echo ipv4 >"$port/addr_adrfam"
	echo "$IP4_B" >"$port/addr_traddr"
	echo "$SERVICE" >"$port/addr_trsvcid"
	[ $# = 1 ] || echo "$2" >"$port/addr_tsas"
	ln -s "$TARGET/subsystems/$NQN" "$port/subsystems/$NQN"
}

# Taking down the target's port makes lockdep report the order of two of the target's locks
# (qemu/known-reports). lockdep then stops until the guest restarts.
target_down() {
	local subsystem=$TARGET/subsystems/$NQN port=$TARGET/ports/1
	rm "$port/subsystems/$NQN"
	rmdir "$port" "$subsystem/namespaces/1" "$subsystem"
	within 30 rmmod "nvmet-$FABRIC"
}

# nvme_over SECONDS COMMAND [OPTIONS...]: runs nvme for the target.
nvme_over() {
	local limit=$1 command=$2
	shift 2
	within "$limit" nvme "$command" -t "$FABRIC" -a "$IP4_B" -s "$SERVICE" "$@"
}

# connect [OPTION...]: with two queues, unless the options say otherwise.
connect() {
	nvme_over 30 connect -n "$NQN" -i 2 "$@" || die "nvme connect: $?"
	eventually 10 test -b "$DISK" || die 'no disk'
}

# impatient: connects, and gives up lost connections within seconds.
impatient() { connect -l 4 -c 1; }

disconnect() { within 30 nvme disconnect -n "$NQN"; }

initiator_up() { modprobe "nvme-$FABRIC"; }
initiator_down() { :; }

discover() {
	nvme_over 30 discover >"$TMP/found"
	grep -q "subnqn: *$NQN" "$TMP/found" || die "found: $(cat "$TMP/found")"
}

# device_deleted_under_load [PARAMETER of nvmet-FABRIC...]: deletes the device under load. The
# target can then be taken down and set up again, with the same data on the disk.
device_deleted_under_load() {
	MARK=deleted
	impatient
	load_begin 6
	within 30 rdma link del "$DEV_A" || die "rdma link del: $?"
	load_end any
	disconnect || true
	eventually 30 disk_is_gone || die 'the disk is still there'
	target_down
	link_add - "$DEV_A" "$TYPE" "$NET_A"
	target_up "$@"
	connected marked
}
