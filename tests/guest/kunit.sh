#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs the module's KUnit suites in the debug kernel, by loading the module. Their results go to the
# kernel's log, which tests/kunit reads. The argument is KUnit's filter of cases.
set -eu

[ -d /sys/kernel/debug/kunit ] || { echo 'this kernel has no KUnit'; exit 1; }
printf %s "${1:-*}" >/sys/module/kunit/parameters/filter_glob
# shellcheck source=tests/guest/kcsan.sh
. "${0%/*}/kcsan.sh"
modprobe riwarp
rmmod riwarp
kcsan_watched
