# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: libfabric's provider for verbs, with connected endpoints (msg) and with
# reliable datagrams that it makes of them (rxm).

fi_listed() {
	in_ns "$NS_A" within 30 fi_info -p verbs >"$TMP/fi_info"
	grep -A 6 "^provider: $1" "$TMP/fi_info" | grep "domain: $DEV_A" || { cat "$TMP/fi_info"; die "no $1 on $DEV_A"; }
}

# fi_pair ENDPOINT PROVIDER OPTIONS...: fi_pingpong compares its data with -c.
fi_pair() {
	local endpoint=$1 provider=$2
	shift 2
	over_rdma 1000 pair 60 fi_pingpong -p "$provider" -e "$endpoint" -d "$DEV_B" -c -B "$PORT" "$@" -- \
		fi_pingpong -p "$provider" -e "$endpoint" -d "$DEV_A" -c -P "$PORT" "$@" "$IP4_B"
}

version libfabric libfabric1
ends_up netns
name=$TYPE/libfabric
try "$name/info_msg" 40 fi_listed verbs
try "$name/info_rxm" 40 fi_listed 'verbs;ofi_rxm'
try "$name/pingpong_msg" 60 fi_pair msg verbs -I 20
try "$name/pingpong_msg_all_sizes" 100 fi_pair msg verbs -I 2 -S all
try "$name/pingpong_msg_in_a_row" 300 in_a_row "$ROW" fi_pair msg verbs -I 5 -S 4096
try "$name/pingpong_rxm" 60 fi_pair rdm 'verbs;ofi_rxm' -I 20
try "$name/pingpong_rxm_all_sizes" 100 fi_pair rdm 'verbs;ofi_rxm' -I 2 -S all
try "$name/pingpong_rxm_in_a_row" 300 in_a_row "$ROW" fi_pair rdm 'verbs;ofi_rxm' -I 5 -S 4096
ends_down
