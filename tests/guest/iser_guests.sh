#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# iSCSI Extensions for RDMA between two guests, target and initiator of the kernel. The cases are in
# storage_guests.sh.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"
# shellcheck source=storage_iser.sh
. "$(dirname "$0")/storage_iser.sh"
# shellcheck source=storage_guests.sh
. "$(dirname "$0")/storage_guests.sh"

CYCLES=${CYCLES:-50}

# Towards a siw target, delays what this end sends by 50 ms: siw requires its last Sends to be done
# before the session ends.
disconnect() {
	[ "$PEER" != siw ] || tc qdisc add dev eth0 root netem delay 50ms
	node --logout
	[ "$PEER" != siw ] || tc qdisc del dev eth0 root
}

all() {
	roles_in_turn
	faults
}

two_guests all
