# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: UCX, which refuses devices whose transport is iWARP (uct_ib_device_is_supported
# in its ib_md.c).

ucx_lists_nothing() {
	UCX_LOG_LEVEL=debug within 60 ucx_info -d >"$TMP/ucx" 2>&1
	if grep "Device: $DEV_A" "$TMP/ucx"; then die 'it is listed'; fi
	grep 'unsupported transport type' "$TMP/ucx" || grep -i "$DEV_A" "$TMP/ucx" || true
	skip_case 'UCX refuses transport iWARP (uct_ib_device_is_supported)'
}

version ucx libucx0
ends_up self
try "$TYPE/ucx/not_listed" 80 ucx_lists_nothing
ends_down
