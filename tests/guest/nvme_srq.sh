#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# NVMe over Fabrics with shared receive queues in the target: what nvme.sh cannot do in its own guest, since the target
# has to be taken down before it can have them, which stops lockdep.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"
# shellcheck source=storage_nvme.sh
. "$(dirname "$0")/storage_nvme.sh"

# The target's queue pairs take their receive work requests from shared queues.
shared() {
	connect
	rdma resource show srq
	rdma resource show srq | grep -q "^dev $DEV_A .* lqpn [0-9].*\[nvmet_rdma\]" || die 'no queue is shared'
	verified 8
	disconnect
}

ends_up self
target_up use_srq=1
initiator_up
try shared 90 shared
try cycles 150 cycles "${CYCLES:-5}"
! can_starve || try starved 150 starved
# Takes the target down, which stops lockdep: nothing may come after it.
try device_deleted_under_load 120 device_deleted_under_load use_srq=1
initiator_down
target_down
finish
