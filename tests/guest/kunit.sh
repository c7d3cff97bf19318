#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The module's KUnit suites, in the debug kernel: they run when the module is loaded. Their results go to
# the kernel's log, and from there, by tests/kunit, to whoever asked.
set -eu

[ -d /sys/kernel/debug/kunit ] || { echo 'this kernel has no KUnit'; exit 1; }
modprobe riwarp
rmmod riwarp
