#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The verbs test programs, each on one device whose both ends are in one process.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

ends_up self
programs='query limits notify sends rdma order sge iova revoke srq cqfull flush privdata connect'
case $TYPE in
riwarp_rxe)
	export EXTENSIONS=1
	programs+=' extensions scribble'
	;;
*) programs+=' garbage' ;;
esac
for program in ${PROGRAMS:-$programs}; do
	relay 150 "$VERBS_DIR/$program" "$IP4_B"
done
finish
