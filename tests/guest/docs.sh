#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs the shell blocks of the documents, each as a case, in the guest root `stacks`, which has the
# tools that they call. Behind ```sh stands what a block needs; readers do not see it:
#
#   by=TEST      this other test runs what it says; `by=hand`: none does
#   device       the device riw0 on eth0
#   traffic      besides, rping exchanges messages over it all the time, with the peer 10.0.0.1
#   blue         the interface eth1 and the network namespace blue
#   interrupted  its last command says when it has begun, and runs until it is interrupted
#   says=WORD    its output has this word
#
# A block starts as root in an empty directory, on a machine with the interface eth0, whose address
# is 10.0.0.1, the table and the chain of Debian's firewall, and no RDMA device. DOCS says which
# documents, by default all that have such blocks. tests/documented checks these words.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# run LINE WORDS FILE: runs the block behind this line.
run() {
	local words=" $2 " said=$TMP/said pid fpdus status
	cd "$(mktemp -d "$TMP/at.XXXXXX")"
	awk -v begin="$1" 'NR > begin { if (/^ *```/) exit; print }' "/riwarp/$3" >"$TMP/block"
	case $words in
	*' blue '*)
		ip netns add blue
		ip link add eth1 type veth peer name peer
		;;
	esac
	case $words in *' device '* | *' traffic '*) link_add - riw0 riwarp eth0 ;; esac
	case $words in *' traffic '*)
		start - "$TMP/server" rping -s -P -a 10.0.0.1
		wait_listen 7174
		start - "$TMP/client" rping -c -C 1000000000 -a 10.0.0.1
		eventually 20 grep -q 'phase=rts.*peer=10.0.0.1' /sys/kernel/debug/riwarp/qps
		;;
	esac
	case $words in
	*' interrupted '*)
		set -m
		bash -eu "$TMP/block" >"$said" 2>&1 &
		pid=$!
		eventually 280 grep -qi attach "$said" || die "does not begin: $(last_line "$said")"
		# Some messages must have been exchanged meanwhile.
		fpdus=$(counter riw0 rx_fpdus)
		eventually 60 more_fpdus $((fpdus + 20))
		kill -INT -- "-$pid"
		wait "$pid" || die "exit status $?"
		;;
	*) bash -eu "$TMP/block" >"$said" 2>&1 || { status=$?; cat "$said"; die "exit status $status"; } ;;
	esac
	cat "$said"
	case $words in *' says='*)
		words=${words#* says=}
		grep -qF "${words%% *}" "$said" || die "does not say ${words%% *}"
		;;
	esac
}
more_fpdus() { [ "$(counter riw0 rx_fpdus)" -ge "$1" ]; }

# start_over: takes away what a block has left. Its processes are gone.
start_over() {
	local link
	eventually 20 none_of qp || die "left: $(objects qp)"
	for link in $(rdma link show | sed -n 's,^link \([^/]*\)/.*,\1,p'); do rdma link del "$link"; done
	ip netns del blue 2>/dev/null || true
	ip link del eth1 2>/dev/null || true
	rdma system set netns shared
}

# A person who starts a server sees that it is there before the client is started.
cat >"$TMP/person" <<'END'
listens() { until ss -Htln "sport = :$1" | grep -q .; do sleep 0.1; done; }
rping() {
	[ "$1" != -c ] || listens 7174
	command rping "$@"
}
cmtime() {
	[ "$3" != -s ] || listens 7471
	command cmtime "$@"
}
END
export BASH_ENV=$TMP/person

load_modules riwarp
ip address add 10.0.0.1/24 dev eth0
ip link set lo up
nft add table inet filter
nft add chain inet filter input '{ type filter hook input priority filter; }'
mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing

cd /riwarp
mapfile -t documents < <(grep -lE '^ *```sh' README.md docs/*.md)
IFS=' ' read -ra documents <<<"${DOCS:-${documents[*]}}"
for document in "${documents[@]}"; do
	while IFS=: read -r line words; do
		name=$(basename "$document" .md)_$line
		case " $words " in *' by='*) continue ;; esac
		start_over
		try "$name" 300 run "$line" "$words" "$document"
	done < <(grep -nE '^ *```sh' "$document" | sed 's/ *```sh *//')
done
finish
