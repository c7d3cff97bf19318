# SPDX-License-Identifier: GPL-2.0
#
# For users; Kbuild is for the kernel's build system.
#
#   make [KDIR=...]     builds riwarp.ko for a kernel whose build tree has the Rust side
#   make install        installs it for the running kernel
#
# Everything below needs only a Debian (12 or later) with make and git, root, its package mirror and,
# for tests, the Rust package registry. It makes a small Debian of its own with the kernel, the
# compilers and the RDMA programs (minutes, the first time; qemu/README.md), builds there, and boots
# the result in QEMU.
#
#   make demo           two machines talk RDMA through riwarp; TYPE=riwarp_siw for that link type
#   make demo-nvme      a disk over NVMe-oF by riwarp, siw and TCP
#   make demo-iser      the same over iSER and iSCSI
#   make test           the tests that are part of every change; closes with "N passed, N failed". Some are for a debug
#                       kernel, which is made for them (the first time: about 20 minutes on two processors).
#                       tests/run-all says how to run others, or all
#   make kunit          the tests inside that kernel, and nothing else
#   make soak           fuzzing: ten minutes of each fuzz target, then of mutated conversations and of corrupted
#                       queues in that kernel; SECONDS=n is the time of each. Then mutants of the driver, each of which has
#                       to fail a suite (tests/mutation)
#   make coverage       the lines of the protocol core that its tests run
#   make bench          riwarp beside siw, in figures; BENCH="NAME=VALUE..." selects some of them
#   make check          formatting, lints, docs/conformance.md, and the tests that need no kernel
#   make kdir           the kernel tree to build against, and nothing more
#   make modules        riwarp.ko for that kernel
#   make debug          the debug kernel, and the module for it
#   make fmt            formats the Rust sources
#   make clean          removes what builds leave in the checkout
#   make distclean      ... and what was made outside of it

KDIR ?= /lib/modules/$(shell uname -r)/build
CACHE = $${RIWARP_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/riwarp}

all:
	$(MAKE) -C $(KDIR) M=$(CURDIR) modules

install: all
	$(MAKE) -C $(KDIR) M=$(CURDIR) modules_install
	depmod

kdir:
	@qemu/setup host root kdir

modules:
	@qemu/setup

debug:
	@qemu/setup host root kdir debug

demo demo-nvme demo-iser test bench: modules
test kunit soak: debug
demo:
	@tests/demo
demo-nvme demo-iser: demo-%:
	@qemu/run --no-build --timeout 300 tests/guest/demo_storage.sh $*
bench:
	@tests/bench $(BENCH)
test:
	@tests/run-all
soak:
	@tests/soak $(SECONDS)

kunit:
	@tests/kunit

check: kdir
	@tests/check

coverage: kdir
	@tests/coverage

fmt: kdir
	@qemu/chroot rustfmt --edition 2021 $$(git ls-files '*.rs')

# Kbuild cleans, for any kernel tree.
clean:
	@if [ -e $(KDIR)/Makefile ]; then make -C $(KDIR) M=$(CURDIR) clean; \
	else qemu/chroot make -C /kdir M=/riwarp clean; fi
	@rm -rf tests/guest/build tests/target

distclean: clean
	@cd $(CACHE) && rm -rf boot-* build-* debug-* home kdir-* layer-* log extra-* modules-* mutation-* root-* \
		run sources-* uml-* *.lock

.PHONY: all install kdir modules debug demo demo-nvme demo-iser test kunit soak bench check coverage fmt clean \
	distclean
