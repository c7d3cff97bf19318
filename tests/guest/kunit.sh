#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The module's KUnit suites, in the debug kernel: they run when the module is loaded. Their results go to
# the kernel's log, and from there, by tests/kunit, to whoever asked. The argument is the kernel's filter of cases.
set -eu

[ -d /sys/kernel/debug/kunit ] || { echo 'this kernel has no KUnit'; exit 1; }
printf %s "${1:-*}" >/sys/module/kunit/parameters/filter_glob
modprobe riwarp
rmmod riwarp
