# SPDX-License-Identifier: GPL-2.0
#
# Shared by the scripts beside it: the paths of the caches, locks, and steps with progress.
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
# These depend on the kernel's version only, not on the root's other packages.
kdir=$cache/kdir-$(key kdir)
boot=$cache/boot-$(key kdir initramfs init.c tsc.c)
# Modules of the kernel's source that Debian does not build (qemu/modules).
stock_extra=$cache/extra-$(key kdir modules)

# The same for the debug kernel.
debug_release=${kernel_release%%+*}-riwarp-debug
debug_kdir=$cache/debug-$(key debug-kernel debug.config)
debug_boot=$cache/boot-$(key debug-kernel debug.config initramfs init.c tsc.c)
debug_extra=$cache/extra-$(key debug-kernel debug.config modules)

# The same for User-Mode Linux (../uml).
uml_release=${kernel_release%%+*}-riwarp-uml
uml_kdir=$cache/uml-$(key ../uml/kernel ../uml/config ../uml/barrier.patch ../uml/crc32c.patch ../uml/ipi.patch)

die() {
	echo "${0##*/}: $*" >&2
	exit 1
}

# lock NAME: waits until no other run makes NAME; the lock is held until this process ends.
lock() {
	exec {lock_fd}>"$cache/$1.lock"
	flock -n "$lock_fd" || {
		echo "  waiting for another run that makes the same ($1)" >&2
		flock "$lock_fd"
	}
}

# wait_turn KIND: waits until the guest may boot, since more guests than processors make each other
# time out. The slot is free again when this shell has ended, or has closed the file `turn`.
wait_turn() {
	local slot=0
	mkdir -p "$cache/run"
	find "$cache/run" -mindepth 1 -maxdepth 1 -type d -mmin +1440 -exec rm -rf {} +
	until exec {turn}>"$cache/run/$1$slot" && flock -n "$turn"; do
		exec {turn}>&-
		slot=$(((slot + 1) % $(nproc)))
		sleep 0.2
	done
}

# unpack_kernel DIR: unpacks the kernel's source into a new directory.
unpack_kernel() {
	rm -rf "$1"
	mkdir "$1"
	tar -xf "$root/usr/src/linux-source-$kernel_source.tar.xz" -C "$1" --strip-components=1
}

# in_tree DIR COMMAND...: runs a command in a kernel tree that is being made. The tree is mounted
# where qemu/chroot will mount it, since it records absolute paths.
in_tree() {
	# shellcheck disable=SC2016
	unshare --mount --propagation private sh -eu -c '
		mount --bind "$1" "$2/kdir"
		mount -t proc proc "$2/proc"
		mount --rbind /dev "$2/dev"
		root=$2
		shift 2
		exec chroot "$root" env -i HOME=/tmp PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
			sh -c '\''cd /kdir && exec "$@"'\'' sh "$@"
	' sh "$1" "$root" "${@:2}"
}

# step NAME TEXT COMMAND...: runs a long command with its output in a log file; prints the time it
# took, and on failure the end of the log.
step() {
	local name=$1 text=$2 log=$cache/log/$1.log start=$SECONDS
	shift 2
	printf '  %-44s ' "$text" >&2
	# In the background, since set -e has no effect inside a condition.
	"$@" >"$log" 2>&1 </dev/null &
	if wait $!; then
		printf '%4d s\n' $((SECONDS - start)) >&2
	else
		printf 'failed after %d s; log: %s\n' $((SECONDS - start)) "$log" >&2
		tail -n 15 "$log" | sed 's/^/    | /' >&2
		return 1
	fi
}
