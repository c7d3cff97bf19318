# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: programs that connect their queue pairs by ibv_modify_qp and know no rdma_cm.
# gloo is Debian's library; what NCCL and Mooncake do, which need graphics cards or are not in
# Debian, is done by a program of the tests, step by step.

gloo() {
	rm -rf "$TMP/gloo"
	mkdir "$TMP/gloo"
	over_rdma 1000000 within 80 "$VERBS_DIR/gloo" "$1" "$DEV_A" "$TMP/gloo"
}

# Without Immediate Data they cannot begin.
gloo_refused() {
	rm -rf "$TMP/gloo"
	mkdir "$TMP/gloo"
	if within 20 "$VERBS_DIR/gloo" 2 "$DEV_A" "$TMP/gloo" >"$TMP/log" 2>&1; then die 'it works'; fi
	cat "$TMP/log"
	skip_case 'libsiw has no Immediate Data; use the link type riwarp'
}

version gloo libgloo0
ends_up self
[ "$TYPE" != riwarp_ib ] || export DEVICE=$DEV_A
name=$TYPE/gloo
if [ "$TYPE" != riwarp_siw ]; then
	try "$name/two_ranks" 100 gloo 2
	try "$name/four_ranks" 100 gloo 4
	SCRIPT=$SCRIPT/$TYPE relay 100 "$VERBS_DIR/nccl" "$IP4_B"
else
	try "$name/two_ranks" 60 gloo_refused
fi
SCRIPT=$SCRIPT/$TYPE relay 100 "$VERBS_DIR/mooncake" "$IP4_B"
ends_down
unset DEVICE
