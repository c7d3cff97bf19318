# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Tells whether KCSAN has watched the module. Sourced before that is loaded.

kcsan_count() { sed -n "s/^$1: //p" /sys/kernel/debug/kcsan; }

KCSAN_BEFORE=''
[ ! -e /sys/kernel/debug/kcsan ] || KCSAN_BEFORE=$(kcsan_count setup_watchpoints)

# kcsan_watched: in a kernel with KCSAN, prints how many accesses were watched. Fails if there were
# none, if KCSAN is off, or if the module does not call it: some assertions of the kernel's own are
# watched in any case.
kcsan_watched() {
	local watched
	[ "$KCSAN_BEFORE" ] || return 0
	watched=$(($(kcsan_count setup_watchpoints) - KCSAN_BEFORE))
	echo "# KCSAN watched $watched accesses"
	[ "$watched" -gt 0 ] && [ "$(kcsan_count enabled)" = 1 ] &&
		grep -q __tsan_read8 "/usr/lib/modules/$(uname -r)/extra/riwarp.ko"
}
