# SPDX-License-Identifier: GPL-2.0
#
# Shared by the scripts beside it: where the caches are, how a step shows its progress.
# shellcheck shell=bash disable=SC2034

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$here")
# shellcheck source=qemu/versions
. "$here/versions"

cache=${RIWARP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/riwarp}
mkdir -p "$cache/log"

# key FILE...: a short hash of the versions and of the scripts in qemu/ that make something.
key() {
	(cd "$here" && cat versions "$@") | sha256sum | cut -c1-12
}

root=$cache/root-$(key root packages)
# What is made of the kernel's packages depends on the kernel's version, not on what else the root holds.
kdir=$cache/kdir-$(key kdir)
boot=$cache/boot-$(key kdir initramfs init.c)

die() {
	echo "${0##*/}: $*" >&2
	exit 1
}

# lock NAME: wait until no other run makes NAME; held until this process ends.
lock() {
	exec {lock_fd}>"$cache/$1.lock"
	flock -n "$lock_fd" || {
		echo "  waiting for another run that makes the same ($1)" >&2
		flock "$lock_fd"
	}
}

# step NAME TEXT COMMAND...: run a long command with its output in a log file, show the time it
# took, and on failure the end of the log.
step() {
	local name=$1 text=$2 log=$cache/log/$1.log start=$SECONDS
	shift 2
	printf '  %-44s ' "$text" >&2
	# In the background, since set -e has no force inside a condition.
	"$@" >"$log" 2>&1 </dev/null &
	if wait $!; then
		printf '%4d s\n' $((SECONDS - start)) >&2
	else
		printf 'failed after %d s; log: %s\n' $((SECONDS - start)) "$log" >&2
		tail -n 15 "$log" | sed 's/^/    | /' >&2
		return 1
	fi
}
