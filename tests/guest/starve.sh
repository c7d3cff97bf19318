# SPDX-License-Identifier: GPL-2.0
# Allocations that fail, in a kernel with fault injection.
# shellcheck shell=bash

FAILING=/sys/kernel/debug

can_starve() { [ -d $FAILING/failslab ]; }

# starve failslab|fail_page_alloc FIRST LAST PERCENT TIMES: so many of the allocations that are made by code from
# FIRST to LAST, or on its behalf, fail, at most so often.
starve() {
	local kind=$FAILING/$1
	echo 0 >"$kind/probability"
	[ ! -e "$kind/min-order" ] || echo 0 >"$kind/min-order"
	echo N >"$kind/ignore-gfp-wait"
	echo 0 >"$kind/verbose"
	echo 32 >"$kind/stacktrace-depth"
	echo "$2" >"$kind/require-start"
	echo "$3" >"$kind/require-end"
	echo "$5" >"$kind/times"
	echo "$4" >"$kind/probability"
}

# starve_module PERCENT TIMES: so many of each kind, of riwarp and of what it calls.
starve_module() {
	local text kind
	mapfile -t text < <(awk '/ [tT] .*\[riwarp\]/ { print "0x" $1 }' /proc/kallsyms | sort | sed -n '1p;$p')
	for kind in failslab fail_page_alloc; do starve $kind "${text[@]}" "$@"; done
}

# feed: nothing fails any more.
feed() {
	echo 0 >$FAILING/failslab/probability
	echo 0 >$FAILING/fail_page_alloc/probability
}

# starved_times TIMES: how many have failed of those.
starved_times() { echo $((2 * $1 - $(cat $FAILING/failslab/times) - $(cat $FAILING/fail_page_alloc/times))); }
