#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# NVMe over Fabrics between two guests, target and host of the kernel. The cases are in
# storage_guests.sh. They run with receive queues for each of the target's queue pairs, then with
# shared ones.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"
# shellcheck source=storage_nvme.sh
. "$(dirname "$0")/storage_nvme.sh"
# shellcheck source=storage_guests.sh
. "$(dirname "$0")/storage_guests.sh"

CYCLES=${CYCLES:-100}

# Taking the target down stops lockdep in its guest until that restarts (storage_nvme.sh).
stale() { ! (order lockdep_works) >/dev/null; }

# The target has been taken down before this case.
UNWATCHED='*fault/unload'

# queues N OPTION...: connects with N queues, through which verified I/O passes.
queues() {
	local has
	connect "${@:2}"
	has=$(cat /sys/class/nvme/nvme0/queue_count)
	[ "$has" = $(($1 + 1)) ] || die "$has queues, including the admin queue"
	verified 8
	disconnect
}

# A queue without completion notification: the task that waits polls it.
polled() {
	connect -i 1 -P 1
	fio --name=polled --filename="$DISK" --direct=1 --ioengine=pvsync2 --hipri=1 --rw=randrw \
		--bsrange=512-64k --blockalign=512 --size=2M --verify=crc32c --verify_fatal=1 --minimal \
		>"$TMP/fio" 2>&1 || die "fio: $(last_line "$TMP/fio")"
	disconnect
}

# More queues than processors, some for writes only.
kinds_of_queues() {
	order_end_up riwarp riwarp
	device_up riwarp riwarp
	initiator_up
	try discover 40 discover
	try queues/1 60 queues 1 -i 1
	try queues/4 60 queues 4 -i 2 -W 2
	try queues/polled 60 polled
	initiator_down
	device_down riwarp
	order end_down riwarp
}

# host_restarted is last: its target is guest 2, which does not restart.
everything() {
	[ -z "${PAIRS-1}" ] || kinds_of_queues
	roles_in_turn
	ROUGH_FAULTS=${ROUGH_FAULTS% host_restarted} faults
	TARGET_PARAMETERS=(use_srq=1) PREFIX=srq/ PAIRS=${SRQ_PAIRS-riwarp/riwarp riwarp/siw}
	[ "$CYCLES" -le 20 ] || CYCLES=20
	roles_in_turn
	faults
	TARGET_PARAMETERS=() PREFIX=''
	faults_begin
	in_turn host_restarted
	faults_end
}

two_guests everything
