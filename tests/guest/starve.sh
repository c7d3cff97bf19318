# SPDX-License-Identifier: GPL-2.0
# Makes allocations fail, in a kernel with fault injection. Sourced.
# shellcheck shell=bash

FAILING=/sys/kernel/debug

can_starve() { [ -d $FAILING/failslab ]; }

# aim failslab|fail_page_alloc FIRST LAST: restricts `starve` to allocations whose call stack
# contains code from FIRST to LAST.
aim() {
	local kind=$FAILING/$1
	echo 0 >"$kind/probability"
	[ ! -e "$kind/min-order" ] || echo 0 >"$kind/min-order"
	echo N >"$kind/ignore-gfp-wait"
	echo 0 >"$kind/verbose"
	echo 32 >"$kind/stacktrace-depth"
	echo "$2" >"$kind/require-start"
	echo "$3" >"$kind/require-end"
}

# addresses_of PATTERN: prints the first address of the module's function whose symbol matches, and
# the address where the next one begins.
addresses_of() {
	awk '/ [tT] .*\[riwarp\]/ { print "0x" $1, $3 }' /proc/kallsyms | sort |
		awk -v name="$1" 'first { print first, $1; exit } $2 ~ name { first = $1 }'
}

# spare PATTERN: excepts what the module's function whose symbol matches calls.
spare() {
	local first last kind
	read -r first last < <(addresses_of "$1") || die "the addresses of $1 are unknown"
	for kind in failslab fail_page_alloc; do
		echo "$first" >"$FAILING/$kind/reject-start"
		echo "$last" >"$FAILING/$kind/reject-end"
	done
}

# kernel_addresses_of NAME: prints the same of a function of the kernel, or of another module.
kernel_addresses_of() {
	awk '/ [tT] / { print "0x" $1, $3 }' /proc/kallsyms | sort |
		awk -v name="$1" 'first && $1 != first { print first, $1; exit } $2 == name { first = $1 }'
}

# spare_kernel NAME: excepts what this function of the kernel, or of another module, calls.
spare_kernel() {
	local first last kind
	read -r first last < <(kernel_addresses_of "$1") || return 1
	for kind in failslab fail_page_alloc; do
		echo "$first" >"$FAILING/$kind/reject-start"
		echo "$last" >"$FAILING/$kind/reject-end"
	done
}

# starve failslab|fail_page_alloc PERCENT TIMES: makes this percentage of the allocations fail,
# TIMES at most.
starve() {
	echo "$3" >"$FAILING/$1/times"
	echo "$2" >"$FAILING/$1/probability"
}

# aim_at_module: aims at riwarp and at what it calls. This takes a while.
aim_at_module() {
	local text kind
	mapfile -t text < <(awk '/ [tT] .*\[riwarp\]/ { print "0x" $1 }' /proc/kallsyms | sort | sed -n '1p;$p')
	for kind in failslab fail_page_alloc; do aim $kind "${text[@]}"; done
}

# starve_module PERCENT TIMES: the same for each kind of allocation.
starve_module() {
	local kind
	for kind in failslab fail_page_alloc; do starve $kind "$@"; done
}

# feed: ends the failures.
feed() {
	echo 0 >$FAILING/failslab/probability
	echo 0 >$FAILING/fail_page_alloc/probability
}

# starved_times TIMES: prints how many allocations have failed, of both kinds.
starved_times() { echo $((2 * $1 - $(cat $FAILING/failslab/times) - $(cat $FAILING/fail_page_alloc/times))); }
