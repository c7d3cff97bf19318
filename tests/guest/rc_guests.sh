#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Programs that connect their queue pairs without rdma_cm, between two guests: guest 1 listens,
# guest 2 connects and reports. Run it with qemu/run --guests 2 --out DIR.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

PEER=10.77.0.1
NS_A=- NS_B=- DEV=riw0
load_modules "$MODULE"
link_add - "$DEV" "$TYPE" eth0

# meet PROGRAM [OPTIONS of both ends...]: runs this guest's end.
meet() {
	local program=$1 name="$*"
	shift
	PORT=$((PORT + 1))
	if [ "$GUEST" = 1 ]; then
		start - "$TMP/server" within 90 "$program" -d "$DEV" -p "$PORT" "$@"
		wait_listen "$PORT"
		: >"/mnt/out/listening.$PORT"
		wait "$STARTED" || not_ok "server of $program" "$(last_line "$TMP/server")"
	else
		try "${name// /_}" 90 call_over "$program" "$@"
		PORT=$((PORT - 10))
	fi
}

call_over() {
	local program=$1 port=$((PORT - 10))
	shift
	eventually 60 test -e "/mnt/out/listening.$port" || die "no server at port $port"
	within 80 "$program" -d "$DEV" -p "$port" "$@" "$PEER"
}

# IPv4, IPv6 and link-local, in the order of the GID table.
for index in 0 1 2; do
	meet ibv_rc_pingpong -g $index -c -n 200
done
meet ibv_rc_pingpong -g 0 -e -s 1048576 -n 20
meet ibv_srq_pingpong -g 0 -q 16 -n 320
for tool in write read send; do
	meet ib_${tool}_bw -F -x 0 -s 65536 -n 50
	meet ib_${tool}_lat -F -x 0 -s 64 -n 50
done
if [ "$TYPE" != riwarp_siw ]; then
	for kind in FETCH_AND_ADD CMP_AND_SWAP; do
		meet ib_atomic_bw -F -x 0 -A $kind -n 50
		meet ib_atomic_lat -F -x 0 -A $kind -n 50
	done
	meet ib_write_bw -F -x 0 --write_with_imm -s 4096 -n 50
fi
finish
