#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# iSCSI Extensions for RDMA, initiator and target of the kernel, both on one device of the initial
# namespace, where they have to be.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"
# shellcheck source=storage_iser.sh
. "$(dirname "$0")/storage_iser.sh"

# The session is one of iSER, on a queue pair of the device.
over_rdma() {
	iscsiadm -m session | grep -q '^iser:' || die "$(iscsiadm -m session)"
	! no_qp || die "$(rdma resource show qp)"
}

ends_up self
target_up
initiator_up
try login 40 connected over_rdma
disk_cases
! can_starve || try starved 150 starved
initiator_down
target_down
finish
