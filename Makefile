# SPDX-License-Identifier: GPL-2.0
#
# The targets for users; Kbuild is for the kernel's build system.
#
#   make [KDIR=...]     builds riwarp.ko for a kernel whose build tree has the Rust side
#   make install        installs it for that kernel
#   make dkms-source [DESTDIR=...]
#                       installs the module's source where DKMS expects it, /usr/src/riwarp-VERSION
#   make install-utils [DESTDIR=...]
#                       installs the unit, its programs and the manual pages, for other
#                       distributions (packaging/)
#   make deb            builds the Debian packages riwarp-dkms and riwarp-utils into deb/, with the
#                       machine's debhelper and dh-dkms; needs neither root nor the kernel
#   make deb-module [KDIR=...] [KEY=... CERT=...]
#                       builds riwarp.ko and the package riwarp-modules-RELEASE, for machines without
#                       compilers, signed by the key if there is one (scripts/deb). MAINTAINER, BUGS,
#                       HOMEPAGE, VCS_GIT and VCS_BROWSER become fields of the packages
#
# The targets below need only a Debian (12 or later) with make and git, root, its package mirror
# and, for tests, the Rust package registry. They make a small Debian with the kernel, the compilers
# and the RDMA programs (minutes, the first time; qemu/README.md), build there, and boot the result
# in QEMU.
#
#   make demo           runs RDMA programs between two machines; TYPE=riwarp_siw for that link type
#   make demo-nvme      compares a disk over NVMe-oF by riwarp, siw and TCP
#   make demo-iser      does the same over iSER and iSCSI
#   make test           runs the tests that are part of every change; the last line is "N passed,
#                       N failed". Builds a debug kernel and User-Mode Linux for some of them
#                       (the first time: about half an hour on two processors). tests/run-all says
#                       how to run others, or all
#   make test-kernels   builds for, and tests in, each of Debian's kernels of qemu/versions' series
#                       and the one before, and prints the support matrix; hours (tests/kernels says
#                       how to take one kernel)
#   make deb-check      builds the packages of make deb in a root of its own, and checks them with
#                       lintian and mandoc
#   make deb-run        builds the package riwarp-run, which runs a command with RDMA devices
#                       without privileges (docs/ci.md); run/build makes it as a directory
#   make image          makes an OCI image of Debian with riwarp-run (docs/ci.md); MIRROR is its source
#                       of packages
#   make test-package   installs, upgrades and purges these packages in a fresh Debian with the
#                       kernels of its backports, and boots it in QEMU: up to an hour (tests/package)
#   make test-stacks    runs other people's programs (libfabric, MPI, UCX, ...) in a guest root with
#                       their packages (docs/programs.md)
#   make test-docs      runs the commands of README and docs/ in a guest
#   make docs           makes a site of README, docs/ and the pages beside the sources in site/, with
#                       search, by Debian's mdbook (scripts/docs)
#   make kunit          runs the KUnit suites in that kernel
#   make soak           looks for faults by chance for T=60m (10m if not given; s, m or h): the fuzz
#                       targets of the protocol core, then mutated conversations, torture and
#                       corrupted queues in the debug kernel (tests/soak)
#   make soak-kcsan     does the latter three in a kernel with KCSAN, which reports data races.
#                       Builds that kernel (the first time: about 30 minutes)
#   make endurance      unloads the module, kills processes and deletes namespaces hundreds of
#                       times, makes many objects and has many strangers: hours (tests/endurance)
#   make mutation       makes mutants of the driver, each of which has to fail a suite: hours
#                       (tests/arms, tests/mutation)
#   make coverage       measures which lines of the protocol core its tests run, and which lines of
#                       the module KUnit and the guest suites run in User-Mode Linux: half an hour
#                       (tests/coverage)
#   make bench          measures riwarp, siw, rxe and TCP in QEMU and, natively, in User-Mode
#                       Linux, on one host and between two, in about an hour; BENCH="NAME=VALUE..."
#                       selects measurements (tests/bench)
#   make check          checks formatting, lints and the rules of the RFCs, and runs the tests that
#                       need no kernel, and the examples of rust/ in User-Mode Linux
#   make upstream       makes the driver as a folder of a kernel tree, with a patch, in upstream/,
#                       builds it there and runs checkpatch.pl over it, in five minutes
#                       (docs/upstream.md)
#   make kdir           makes the kernel tree to build against
#   make modules        builds riwarp.ko for that kernel
#   make debug          builds the debug kernel, and the module for it
#   make uml            does the same with User-Mode Linux
#   make kcsan          does the same with the KCSAN kernel
#   make fmt            formats the Rust sources
#   make clean          removes what builds leave in the checkout
#   make distclean      also removes everything that was made outside of it

# KERNEL=NAME, a release or a series and flavour like 7.2-amd64, makes them take this kernel of the
# mirror instead of the one that qemu/versions pins (qemu/resolve).

KDIR ?= /lib/modules/$(shell uname -r)/build
CACHE = $${RIWARP_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/riwarp}

all:
	@RUSTC="$(RUSTC)" BINDGEN="$(BINDGEN)" scripts/preflight $(KDIR)
	$(MAKE) -C $(KDIR) M=$(CURDIR) modules

install: all
	$(MAKE) -C $(KDIR) M=$(CURDIR) modules_install
	depmod "$$(cat $(KDIR)/include/config/kernel.release)"

VERSION := $(shell sed -n 's/^riwarp_version := //p' Kbuild)
DKMS_SOURCE = $(DESTDIR)/usr/src/riwarp-$(VERSION)

# Without what a build has left.
dkms-source:
	install -d $(DKMS_SOURCE)
	tar -c --exclude-from=.gitignore --exclude=rust/bindings_generated.rs Kbuild dkms.conf rust src \
		scripts/dkms-build scripts/kernel-tree scripts/preflight scripts/supported | tar -x --no-same-owner -C $(DKMS_SOURCE)

# What Debian's package has.
install-utils:
	while read -r from to; do \
		install -d $(DESTDIR)/$$to && cp $$from $(DESTDIR)/$$to/ || exit; \
	done <debian/riwarp-utils.install
	while read -r page; do \
		install -D -m 644 -t $(DESTDIR)/usr/share/man/man$${page##*.} $$page || exit; \
	done <debian/riwarp-utils.manpages

kdir:
	@qemu/setup host root kdir

modules:
	@qemu/setup

debug kcsan uml:
	@qemu/setup host root kdir $@

demo demo-nvme demo-iser test test-stacks test-docs endurance mutation: modules
test kunit soak: debug
test: uml
soak-kcsan: kcsan
demo:
	@tests/demo
demo-nvme demo-iser: demo-%:
	@qemu/run --no-build --timeout 300 tests/guest/demo_storage.sh $*
bench:
	@tests/bench $(BENCH)
test:
	@tests/run-all
test-stacks:
	@tests/run-all stacks
test-docs:
	@tests/run-all docs storage_docs
docs:
	@scripts/docs
test-kernels:
	@tests/kernels
deb:
	@scripts/deb
deb-module: all
	@scripts/deb --module $(KDIR)
deb-check deb-run:
	@scripts/deb --$(@:deb-%=%)
image:
	@scripts/image
test-package:
	@tests/package
soak:
	@tests/soak $(T)
soak-kcsan:
	@tests/soak --kernel kcsan $(T)
endurance:
	@tests/endurance
mutation:
	@tests/arms core driver
	@tests/mutation

kunit:
	@tests/kunit

check: kdir
	@tests/check

upstream: kdir
	@scripts/upstream --check

coverage: kdir
	@tests/coverage

fmt: kdir
	@qemu/chroot rustfmt --edition 2021 $$(git ls-files '*.rs')

# Kbuild removes its own files; any kernel tree will do.
clean:
	@if [ -e $(KDIR)/Makefile ]; then make -C $(KDIR) M=$(CURDIR) clean; \
	elif bash -c '. qemu/lib.sh && [ -d "$$root" ] && [ -d "$$kdir" ]'; then \
		qemu/chroot make -C /kdir M=/riwarp clean; fi
	@rm -rf deb site upstream tests/guest/build tests/target

distclean: clean
	@cd $(CACHE) && rm -rf apt-* boot-* build-* coverage-* cross-* debug-* extra-* home instead-of-* kcsan-* kdir-* kernel-* kernels \
		layer-* log modules-* mutation-* root-* run sources-* uml-* *.lock

.PHONY: all install dkms-source install-utils kdir modules debug kcsan uml demo demo-nvme demo-iser test test-stacks test-docs docs \
	test-kernels deb deb-module deb-check deb-run image test-package kunit soak soak-kcsan endurance mutation bench check upstream \
	coverage fmt clean distclean
