# SPDX-License-Identifier: GPL-2.0
#
# Shared by tests/native-compare and tests/instructions. Sourced after qemu/lib.sh.
# shellcheck shell=bash disable=SC2034

# arguments ARGUMENT...: puts the commits, up to the first NAME=VALUE, into `commits`, and the others
# into `settings`.
arguments() {
	commits=()
	while [ $# -gt 0 ] && [[ $1 != *=* ]]; do
		commits+=("$1")
		shift
	done
	settings=("$@")
}

# build_modules KERNEL: builds the modules of the commits for that kernel of qemu/modules, and puts
# them into the new directory `share` as 0.ko, 1.ko ..., whose names are in `modules`. "." is the
# checkout as it is. `layer` is that of the last one (qemu/modules --layer).
build_modules() {
	local i commit sources
	share=$(mktemp -d)
	trap 'rm -rf "$share"' EXIT
	modules=''
	for i in "${!commits[@]}"; do
		sources=$top
		if [ "${commits[i]}" != . ]; then
			commit=$(git rev-parse --verify "${commits[i]}^{commit}")
			sources=$cache/sources-$commit
			if [ ! -d "$sources" ]; then
				rm -rf "$sources.new"
				mkdir "$sources.new"
				git archive "$commit" Kbuild rust src | tar -C "$sources.new" -x
				mv "$sources.new" "$sources"
			fi
		fi
		qemu/modules "$1" "$sources"
		layer=$(qemu/modules --layer "$1" "$sources")
		cp "$layer"/usr/lib/modules/*/extra/riwarp.ko "$share/$i.ko"
		modules+=" $i.ko"
	done
}

# measure ENGINE COMMAND...: boots guests by the command, which run tests/guest/bench.sh with the
# settings, and adds its rows to $share/rows. Shows what else they say, and the number of figures.
measure() {
	local line row=$'row\t' figures=0
	"${@:2}" --no-build --share "$share" --timeout 7200 tests/guest/bench.sh "${settings[@]}" "MODULES=$modules" |
		while IFS= read -r line; do
			line=${line#"[g1] "}
			[[ $line = "$row"* ]] || { echo "$line"; continue; }
			echo "$row$1"$'\t'"${line#"$row"}" >>"$share/rows"
			printf '\r%d figures' "$((figures += 1))" >&2
		done
	[ "${PIPESTATUS[0]}" = 0 ] || status=1
	echo >&2
}
status=0

# conclude: prints the table of all rows, and exits.
conclude() {
	qemu/chroot tests/bench.py compare "${commits[@]}" <"$share/rows"
	exit "$status"
}
