#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The verbs test programs, each on one device whose both ends are in one process.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

ends_up self
for program in ${PROGRAMS:-query limits notify sends rdma order sge iova revoke srq cqfull flush privdata connect garbage}; do
	relay 150 "$VERBS_DIR/$program" "$IP4_B"
done
finish
