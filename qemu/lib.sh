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

die() {
	echo "${0##*/}: $*" >&2
	exit 1
}

# KERNEL in the environment takes the place of the kernel that `versions` pins; so does one that
# qemu/root has chosen because the mirror no longer has the pinned one. Both are kernels of amd64
# with 9p; qemu/run --kernel boots any other.
pinned=$kernel_release instead=$cache/instead-of-$kernel_release
if [ -n "${KERNEL:-}" ]; then
	chosen=$(KERNEL='' "$here/resolve" "$KERNEL") || exit 1
	[[ $chosen = *amd64 && $chosen != *-cloud-* ]] || die "KERNEL=$KERNEL: use qemu/run --kernel for this one"
elif [ -s "$instead" ]; then
	chosen=$(cat "$instead")
else
	chosen=$kernel_release
fi
kernel_release=${chosen%% *}
kernel_source=$(cut -d. -f1,2 <<<"$kernel_release")

# key FILE...: a short hash of the versions and of the scripts in qemu/ that make something.
key() {
	(
		cd "$here"
		cat versions "$@"
		[ "$kernel_release" = "$pinned" ] || echo "$kernel_release"
	) | sha256sum | cut -c1-12
}

root=$cache/root-$(key root packages)
# These depend on the kernel's version only, not on the root's other packages.
kdir=$cache/kdir-$(key kdir)
boot=$cache/boot-$(key kdir initramfs init.c tsc.c)
# Modules of the kernel's source that Debian does not build (qemu/modules).
stock_extra=$cache/extra-$(key kdir modules)

# debug_kernel debug|kcsan: the same for a kernel that finds faults (qemu/debug-kernel).
debug_kernel() {
	debug_configs=(debug.config)
	[ "$1" = debug ] || debug_configs+=("$1.config")
	debug_release=${kernel_release%%+*}-riwarp-$1
	debug_kdir=$cache/$1-$(key debug-kernel "${debug_configs[@]}")
	debug_boot=$cache/boot-$(key debug-kernel "${debug_configs[@]}" initramfs init.c tsc.c)
	debug_extra=$cache/extra-$(key debug-kernel "${debug_configs[@]}" modules)
}

# The same for User-Mode Linux (../uml).
uml_release=${kernel_release%%+*}-riwarp-uml
mapfile -t uml_patches < <(find "$here/../uml" -name '*.patch' | LC_ALL=C sort)
uml_kdir=$cache/uml-$(key ../uml/kernel ../uml/config "${uml_patches[@]}")

# other_kernel NAME: the same for any other kernel of the mirror (qemu/kernel).
other_kernel() {
	local found
	found=$("$here/resolve" "$1") || die "no kernel $1"
	read -r other_release other_version other_arch <<<"$found"
	other_kdir=$cache/kernel-$other_release-$(key kernel ../scripts/kernel-tree)
	other_boot=$cache/boot-$other_release-$(key kernel ../scripts/kernel-tree initramfs init.c tsc.c)
	other_root=$root
	if [ "$other_arch" = arm64 ]; then
		# Compilers for it go over the root in which everything is built.
		export RIWARP_OVER=$cross
		other_root=$root_arm64
	fi
}

# The cross-compilers, and the root of guests, for arm64.
cross=$cache/cross-$(key cross)
root_arm64=$cache/root-arm64-$(key root-arm64 packages.arm64)

# A root of an older Debian (qemu/root-older).
root_older=$cache/root-older-$(key root-older)
# The root in which the Debian packages are built.
root_deb=$cache/root-deb-$(key root-deb)
# What goes over the guest root for scripts/docs and scripts/image (qemu/root-tools).
root_tools=$cache/root-tools-$(key root-tools)
# The root in which they are installed (tests/package).
root_package=$cache/root-package-$(key root-package)
# What goes over the guest root for tests/guest/stacks.sh (qemu/root-stacks).
root_stacks=$cache/root-stacks-$(key root packages root-stacks packages.stacks)

# Modules that no guest has a use for. Without them depmod, which runs after each build, is quick.
unused='sound drivers/ata drivers/bluetooth drivers/comedi drivers/gpu drivers/hwmon drivers/iio
drivers/input drivers/media drivers/mmc drivers/net/wireless drivers/staging drivers/usb'

# mirror: the Debian mirror of the host's own apt configuration. Apt knows whose a mirror is once it
# has asked it.
mirror() {
	# shellcheck disable=SC2016
	local ask=(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian') uri
	uri=${RIWARP_DEBIAN_MIRROR:-}
	if [ -z "$uri" ]; then
		[ -n "$("${ask[@]}")" ] || apt-get update >&2
		uri=$("${ask[@]}" | head -n 1)
	fi
	[ -n "$uri" ] || die "no Debian mirror in apt's configuration; set RIWARP_DEBIAN_MIRROR"
	echo "$uri"
}

# sources [KIND [SUITE...]]: suites, as apt's sources, of kind deb or deb-src (deb). The suites are
# the guest's if none is given.
sources() {
	local uri name kind=${1:-deb} signed='signed-by=/usr/share/keyrings/debian-archive-keyring.gpg'
	uri=$(mirror) || return
	[ $# -gt 1 ] || set -- "$kind" "$suite" "$backports"
	for name in "${@:2}"; do echo "$kind [$signed] $uri $name main"; done
}

# apt_of ARCH COMMAND...: runs apt-get or apt-cache with the guest's suites, whose lists it
# refreshes once a day, instead of the host's. With `source` as ARCH the lists are those of source
# packages, with `sid` those of the source packages of Debian's newest suite.
apt_of() {
	local arch=$1 dir=$cache/apt-$1 command=$2 log=$cache/log/apt-$1.log of=(deb) apt
	shift 2
	case $arch in
	source) arch=amd64 of=(deb-src) ;;
	sid) arch=amd64 of=(deb-src sid) ;;
	esac
	apt=(-q -o "Dir::Etc=$dir/etc" -o "Dir::State=$dir/state" -o "Dir::Cache=$dir/cache"
		-o "Dir::State::status=$dir/status" -o "APT::Architecture=$arch" -o "APT::Architectures=$arch"
		-o APT::Sandbox::User=root)
	mkdir -p "$dir/etc/preferences.d" "$dir/state/lists/partial" "$dir/cache/archives/partial"
	: >>"$dir/status"
	(
		flock 9
		[ -z "$(find "$dir/fresh" -mmin -1440 2>/dev/null)" ] || exit 0
		sources "${of[@]}" >"$dir/etc/sources.list" || exit 1
		if apt-get "${apt[@]}" update >"$log" 2>&1 && ! grep -q '^[WE]: ' "$log"; then
			touch "$dir/fresh"
		elif [ ! -e "$dir/fresh" ]; then
			tail -n 3 "$log" >&2
			die "cannot read the lists of Debian's mirror for $arch"
		fi
	) 9>"$dir.lock" || exit
	"$command" "${apt[@]}" "$@"
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
	find "$cache/run" -mindepth 1 -maxdepth 1 -type d -mtime +13 -exec rm -rf {} +
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

# configure TREE FLAGS FILE...: configures a kernel tree that is being made. What no file asks for is
# off, and of two lines about an option the last one counts. FLAGS are make's. Fails if an option
# comes out otherwise. A later file turns an option off by `=n`: the script takes an "is not set" of
# an option that is not there at all as a difference.
configure() {
	local tree=$1 flags=$2
	shift 2
	cp "$@" "$tree"
	# shellcheck disable=SC2016
	in_tree "$tree" env "MAKEFLAGS=$flags" sh -euc 'merge=scripts/kconfig/merge_config.sh
		"$merge" -m "$@"
		mv .config wanted.config
		"$merge" -n -s wanted.config
		rm "$@" wanted.config' sh "${@##*/}"
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
