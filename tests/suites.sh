# SPDX-License-Identifier: GPL-2.0
#
# Shared by tests/run-all and tests/kernels: runs suites and counts their lines, in the directory
# $out.
# shellcheck shell=bash disable=SC2034,SC2154

# shellcheck source=tests/jobs.sh
. tests/jobs.sh

# Seconds of the scripts that need more than 400 in the stock kernel.
declare -A limit=([perftest]=900 [teardown]=900 [verbs]=900 [hostile]=900 [many]=1800 [leak]=900 [allocations]=1200 [share]=1500)
limit+=([hostile_shapes]=1700 [docs]=1500 [interop]=900 [oob]=600 [rc]=1500 [pyverbs]=1000 [stacks]=7200 [nvme_guests]=1800 [iser_guests]=1800)
# Options of qemu/run for suites with two guests.
declare -A options_of=([rc_guests]='--guests 2')
options_of+=([stacks]='--root stacks --mem 3G --append memmap=64M!1G' [docs]='--root stacks --smp 1' [smb]='--root stacks' [pmem]='--append memmap=64M!1G')
options_of+=([nvme_guests]='--guests 2 --restarts' [iser_guests]='--guests 2 --restarts')
# Suites that look for nothing that takes two processors to happen. In the stock kernel they have
# one: an emulated guest does its work in half the time then, and two guests share two processors.
one_processor=' features smoke leak log state capture tunnel iser nvme_srq fuzz exclusive extensions beside cmtools storage_docs rping listen idle pmem '

# guest KERNEL SCRIPT: removes the mark that names the guest from each line.
guest() {
	local smp=''
	rm -rf "$out/$2.$1"
	[[ $1 != stock || $one_processor != *" $2 "* ]] || smp='--smp 1'
	# shellcheck disable=SC2086
	qemu/run --no-build --kernel "$1" $smp ${options_of[$2]:-} --out "$out/$2.$1" \
		--timeout "${limit[$2]:-400}" "tests/guest/$2.sh" | sed -u 's/^\[g[0-9]*\] //'
}

# run_suite NAME COMMAND...: runs it, and leaves its output, its status and its time in $out/NAME.
# Runs it again if QEMU has failed (qemu/verdict).
run_suite() {
	local name=$1 status begin=$SECONDS try
	shift
	for try in 1 2; do
		status=0
		"$@" >"$out/$name.log" 2>&1 || status=$?
		[ "$status" = 120 ] && [ "$try" = 1 ] || break
		echo "# $name: QEMU has failed; once more"
	done
	# Complete at once: tests/run-all reads the file as soon as it exists.
	echo "$status $((SECONDS - begin))" >"$out/$name.ended"
	mv "$out/$name.ended" "$out/$name.done"
}

# count NAME: reads what run_suite has left: sets ok, bad and skip, the numbers of its cases, status
# and time.
count() {
	read -r status time <"$out/$1.done"
	ok=$(grep -c '^ok ' "$out/$1.log" || true)
	bad=$(grep -c '^not ok ' "$out/$1.log" || true)
	skip=$(grep -c '^skip ' "$out/$1.log" || true)
}
