#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The SCSI RDMA Protocol, initiator and target of the kernel, which find each other by rdma_cm. The
# target takes connections in the initial namespace only, so both ends are there, on two devices.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"

TARGET=/sys/kernel/config/target
STORE=$TARGET/core/iblock_0/disk
LOGIN_PORT=5555
LONGEST=512 INLINE=8192

# port_name DEVICE: the name of an SRP port, which is its device's first GID.
port_name() { echo "0x$(tr -d : <"/sys/class/infiniband/$1/ports/1/gids/0")"; }

target_up() {
	modprobe -a ib_srpt target_core_iblock
	disk_in_memory
	mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
	GROUP=$TARGET/srpt/$(port_name "$DEV_B")/1
	INITIATOR=$GROUP/acls/$(port_name "$DEV_A")
	mkdir -p "$STORE" "$GROUP/lun/lun_0" "$INITIATOR/lun_0"
	echo udev_path=/dev/ram0 >"$STORE/control"
	echo 1 >"$STORE/enable"
	ln -s "$STORE" "$GROUP/lun/lun_0/disk"
	ln -s "$GROUP/lun/lun_0" "$INITIATOR/lun_0/lun"
	echo $LOGIN_PORT >$TARGET/srpt/discovery_auth/rdma_cm_port
	echo 1 >"$GROUP/enable"
}

target_down() {
	echo 0 >"$GROUP/enable"
	rm "$INITIATOR/lun_0/lun" "$GROUP/lun/lun_0/disk"
	rmdir "$INITIATOR/lun_0" "$INITIATOR" "$GROUP/lun/lun_0" "$GROUP" "${GROUP%/1}" "$TARGET/srpt" "$STORE" "$TARGET/core/iblock_0"
	within 30 rmmod ib_srpt
}

# The kernel forgets a session later than its disk, and refuses a second one until then.
connect() {
	local guid end=$((SECONDS + 30 * SLOW))
	guid=$(cat /sys/module/ib_srpt/parameters/srpt_service_guid)
	guid=${guid#0x}
	until echo "id_ext=$guid,ioc_guid=$guid,src=$IP4_A,dest=$IP4_B:$LOGIN_PORT" |
		within 60 tee "/sys/class/infiniband_srp/srp-$DEV_A-1/add_target" 2>"$TMP/login" >/dev/null; do
		grep -q 'File exists' "$TMP/login" && [ "$SECONDS" -lt "$end" ] || die "login: $(cat "$TMP/login")"
		nap 0.1
	done
	eventually 10 disk_is_there || die 'no disk'
}

# impatient: connects, and gives up lost connections within seconds.
impatient() {
	local port
	connect
	for port in /sys/class/srp_remote_ports/*; do
		echo off >"$port/reconnect_delay"
		echo 3 >"$port/fast_io_fail_tmo"
		echo 5 >"$port/dev_loss_tmo"
	done
}

disk_is_there() { first_disk /sys/block/sd*; }

disconnect() {
	local port
	for port in /sys/class/srp_remote_ports/*; do
		[ ! -e "$port" ] || echo 1 >"$port/delete"
	done
	eventually 30 no_disk
}

no_disk() { ! disk_is_there; }

# What the driver and TCP keep for a disk is not charged to the process that has added it: its
# queues and regions would be 4 MB, and some 40 KB are others' inodes and the like.
disk_memory_is_not_charged_to_its_adder() {
	local groups=/tmp/cgroups adder most=0 now kept
	adder=$groups/adder
	mkdir -p $groups
	mount -t cgroup2 none $groups
	grep -qw memory $groups/cgroup.controllers || skip_case 'the kernel does not charge cgroups with memory'
	echo +memory >$groups/cgroup.subtree_control
	mkdir $adder
	(
		echo $BASHPID >$adder/cgroup.procs
		connect
	)
	disk_is_there
	start - "$TMP/read" within 60 dd if="$DISK" of=/dev/null bs=1M count=32 iflag=direct
	while [ -d "/proc/$STARTED" ]; do
		now=$(awk '$1 == "sock" { print $2 }' $adder/memory.stat)
		[ "$now" -le "$most" ] || most=$now
	done
	wait "$STARTED" || die "$(<"$TMP/read")"
	kept=$(awk '$1 == "kernel" { print $2 }' $adder/memory.stat)
	disconnect
	rmdir $adder
	umount $groups
	[ "$most" = 0 ] || die "$most octets of sockets are charged"
	[ "$kept" -lt 1000000 ] || die "$kept octets of the kernel are charged"
}

over_rdma() { ! no_qp || die "no queue pair of $DEV_A"; }

ends_up initial
target_up
# By default a command has 12 pieces at most, here pages.
modprobe ib_srp cmd_sg_entries=255
modprobe sd_mod
try login 40 connected over_rdma
try disk_memory_is_not_charged_to_its_adder 60 disk_memory_is_not_charged_to_its_adder
disk_cases
! can_starve || try starved 150 starved
within 30 rmmod ib_srp
target_down
finish
