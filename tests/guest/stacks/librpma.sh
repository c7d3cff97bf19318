# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: librpma, the library for remote persistent memory, by a program of the tests.

# shellcheck source=tests/guest/device_dax.sh
. "$GUEST_DIR/device_dax.sh"

rpma() {
	[ -c /dev/dax0.0 ] || device_dax
	over_rdma 400000 within 60 "$VERBS_DIR/librpma" "$IP4_B" "$PORT" /dev/dax0.0
}

version librpma librpma0
ends_up self
name=$TYPE/librpma
if [ "$TYPE" = riwarp_siw ]; then
	try "$name/log" 60 skip_case 'libsiw has neither Flush nor Atomic Write; use the link type riwarp'
elif ! has_device_dax; then
	try "$name/log" 60 skip_case 'the kernel has no device DAX'
else
	try "$name/log" 100 rpma
fi
ends_down
