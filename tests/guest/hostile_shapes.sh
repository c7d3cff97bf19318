#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The hostile peer over a link on which its octets arrive in socket buffers of many shapes, on two
# processors at a time, while offloads are turned on and off: all cases, from four programs at a
# time.
set -eu
export LINK=tap WORKERS=4 LIMIT=1600
# shellcheck source=hostile.sh
. "$(dirname "$0")/hostile.sh"
