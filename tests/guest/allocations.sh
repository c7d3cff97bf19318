#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Each allocation of each operation fails once (verbs/failnth.c), for both libraries. In a kernel
# with fault injection only.
#
# CASE: runs these operations only. Prints for each operation how many allocations have failed.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=starve.sh
. "$(dirname "$0")/starve.sh"

# fpdus MTU LIMIT: sets how long they are.
fpdus() {
	ip link set lo mtu "$1"
	setting - "$DEV_A" ulpdu_limit "$2"
}

# sweep: runs the operations on a device of TYPE, each in a process of its own.
sweep() {
	local name
	ends_up self
	ip link add "spare$ENDS_COUNT" type dummy
	NETDEVS_MADE+=("spare$ENDS_COUNT")
	ip link set "spare$ENDS_COUNT" up
	aim_at_module
	# Pages of processes and of vmalloc fail, too.
	echo N >$FAILING/fail_page_alloc/ignore-gfp-highmem
	FETCH=$(addresses_of '^_R.*2qp6paging.*2Qp5fetch$')
	PIN=$(addresses_of '^_R.*11PinnedPages3pin$')
	export FETCH PIN
	for name in ${CASE:-$(NAMES=1 "$VERBS_DIR/failnth")}; do
		# What kmemleak allocates with each object for itself does not count, nor do the hundreds of
		# allocations of ib_core for a device.
		case $name in
		add_device) spare_kernel ib_register_device ;;
		*) spare_kernel __alloc_object || true ;;
		esac
		# Copies of more than 8 KiB do not come from a slab, at which the lasting shortage is aimed.
		case $name in
		lasting_shortage_*) fpdus 3000 0 ;;
		*) fpdus 65536 32782 ;;
		esac
		rm -f "$TMP/counts"
		# The program ends each wait itself. With a hundred failures, add_device takes minutes beside
		# other guests.
		SCRIPT=$SCRIPT/$TYPE CASE=$name COUNTS=$TMP/counts SPARE=spare$ENDS_COUNT \
			relay 300 "$VERBS_DIR/failnth" "$IP4_B"
		[ ! -e "$TMP/counts" ] || sed "s/^/# $TYPE | /" "$TMP/counts"
	done
	try "$TYPE/nothing_left" 30 nothing_left 10 qp cm_id cq mr pd mw srq ctx
	try "$TYPE/unloads" 60 unloads
	ends_down
}

if ! can_starve; then
	skip "$SCRIPT" 'the kernel has no fault injection'
	finish
fi
load_modules "$MODULE"
modprobe dummy
EXTENSIONS=1 sweep
TYPE=riwarp_siw
sweep
finish
