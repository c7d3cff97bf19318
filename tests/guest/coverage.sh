#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# coverage.sh SUITE [ARG...]: runs a script of this directory with a module that counts which of its
# lines run, and leaves the counters in /mnt/out/profraw, also if the script fails. Its status is
# the script's. tests/coverage runs it.
set -eu
insmod "${0%/*}/build/collector-$(uname -r).ko"
status=0
"${0%/*}/$1.sh" "${@:2}" || status=$?
cat /sys/kernel/debug/collector >/mnt/out/profraw
exit "$status"
