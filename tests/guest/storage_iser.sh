# SPDX-License-Identifier: GPL-2.0
# iSCSI Extensions for RDMA, or iSCSI over TCP, initiator and target of the kernel. Sourced. FABRIC
# is rdma or tcp; the target is at IP4_B.
# shellcheck shell=bash

FABRIC=rdma
TARGET=/sys/kernel/config/target
STORE=$TARGET/core/iblock_0/disk
IQN=iqn.2026-11.riwarp:disk
INLINE=8192
GROUP=$TARGET/iscsi/$IQN/tpgt_1
INITIATOR=iqn.2026-11.riwarp:initiator
LONGEST=1024

# target_up: serves a disk in memory to any initiator.
target_up() {
	modprobe -a iscsi_target_mod target_core_iblock
	disk_in_memory
	mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
	mkdir -p "$STORE" "$GROUP/lun/lun_0"
	echo udev_path=/dev/ram0 >"$STORE/control"
	echo 1 >"$STORE/enable"
	ln -s "$STORE" "$GROUP/lun/lun_0/disk"
	echo 1 >"$GROUP/attrib/generate_node_acls"
	echo 0 >"$GROUP/attrib/demo_mode_write_protect"
	echo 0 >"$GROUP/attrib/authentication"
	echo 128 >"$GROUP/attrib/default_cmdsn_depth"
	"portal_$FABRIC"
	echo 1 >"$GROUP/enable"
}

portal_tcp() { mkdir "$GROUP/np/$IP4_B:3260"; }

# The kernel's target listens for plain iSCSI wherever it listens for iSER, and an iWARP device
# needs the same TCP port for iSER. So the plain listener is made in another network namespace.
portal_rdma() {
	modprobe ib_isert
	ip netns add plain
	nsenter --net=/run/netns/plain mkdir "$GROUP/np/$IP4_B:3260"
	echo 1 >"$GROUP/np/$IP4_B:3260/iser"
}

target_down() {
	echo 0 >"$GROUP/enable"
	rmdir "$GROUP/np/$IP4_B:3260"
	rm "$GROUP/lun/lun_0/disk"
	rmdir "$GROUP/lun/lun_0" "$GROUP" "$TARGET/iscsi/$IQN" "$STORE" "$TARGET/core/iblock_0"
	[ "$FABRIC" = tcp ] || {
		ip netns del plain
		within 30 rmmod ib_isert
	}
}

# iscsid_up: starts the initiator's daemon; ISCSID is its process id.
iscsid_up() {
	mkdir -p /run/lock/iscsi
	echo "InitiatorName=$INITIATOR" >/etc/iscsi/initiatorname.iscsi
	# setsid, because it signals its whole process group when it ends.
	start - "$TMP/iscsid" setsid iscsid --foreground --no-pid-file
	ISCSID=$STARTED
	eventually 10 grep -q ISCSIADM_ABSTRACT_NAMESPACE /proc/net/unix || die 'iscsid does not listen'
}

initiator_up() {
	local module=ib_iser interface=iser
	[ "$FABRIC" = rdma ] || module=iscsi_tcp interface=default
	modprobe -a "$module" sd_mod
	iscsid_up
	node -o new -I "$interface"
	node -o update -n node.session.queue_depth -v 128
}

# The default limit of ib_iser is 512 KiB.
widest() {
	local limit=/sys/module/ib_iser/parameters/max_sectors usual
	usual=$(cat $limit)
	echo 2048 >$limit
	"$@"
	echo "$usual" >$limit
}

initiator_down() {
	node -o delete
	kill "$ISCSID"
	eventually 10 gone "$ISCSID" || die 'iscsid does not end'
	[ "$FABRIC" = tcp ] || within 30 rmmod ib_iser
}

# node OPTIONS...: runs iscsiadm for the target.
node() { within 30 iscsiadm -m node -T "$IQN" -p "$IP4_B:3260" "$@"; }

connect() {
	node --login || die "login: $?"
	eventually 10 disk_is_there || die 'no disk'
	always_on
}

# Turns off runtime power management of the SCSI target. When a disk is removed, the kernel would
# check its target for idleness. __iscsi_unbind_session() may have to wait for that, and the kernel
# warns that it waits on the wrong kind of workqueue.
always_on() {
	local control
	for control in /sys/class/iscsi_session/session*/device/target*/power/control; do
		[ ! -e "$control" ] || echo on >"$control"
	done
}

disk_is_there() { first_disk /sys/class/iscsi_session/session*/device/target*/*:*/block/*; }

# impatient: connects, and gives up lost connections within seconds.
impatient() {
	node -o update -n node.session.timeo.replacement_timeout -v 5
	connect
}

disconnect() { node --logout; }
