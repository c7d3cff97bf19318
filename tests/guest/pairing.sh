#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Connections without rdma_cm between two ends in one process, and strangers who try to be one of them.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

ends_up self
relay 200 "$VERBS_DIR/pairing" "$IP4_B"
relay 300 "$VERBS_DIR/stranger" "$IP4_B"
try nothing_left 30 nothing_left 10 qp cq mr pd
finish
