#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# NVMe over Fabrics with shared receive queues in the target. A guest of its own, because the target
# must be taken down to change to them, which stops lockdep.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"
# shellcheck source=storage_nvme.sh
. "$(dirname "$0")/storage_nvme.sh"

# The target's queue pairs use shared receive queues.
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
# Must be last: it takes the target down, which stops lockdep.
try device_deleted_under_load 120 device_deleted_under_load use_srq=1
initiator_down
target_down
finish
