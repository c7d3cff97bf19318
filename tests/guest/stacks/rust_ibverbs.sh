# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: a program in Rust over the crate ibverbs (rust_ibverbs/), which connects its
# queue pairs by ibv_modify_qp.

awk -F '"' '/^name = /{ name = $2 } /^version = / && name == "ibverbs" { print "version rust_ibverbs ibverbs " $2 }' \
	"$GUEST_DIR/stacks/rust_ibverbs/Cargo.lock"
ends_up self
DEVICE=$DEV_A SCRIPT=$SCRIPT/$TYPE/rust_ibverbs relay 120 "$VERBS_DIR/rust_ibverbs"
ends_down
