#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# walks.sh: with a module that counts which of its lines run (tests/coverage walks), does one
# operation at a time, with siw at the other end, and leaves the counters before and after it in
# /mnt/out/OPERATION.N.{before,after}: three times a Write that a process posts (write), a Send that
# arrives (send), and a connection request that arrives until the consumer has it (request) and from
# its accept until both ends are established (accept).
set -eu
insmod "${0%/*}/build/collector-$(uname -r).ko"
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=agents.sh
. "$(dirname "$0")/agents.sh"

# counted OPERATION N COMMAND...: runs it between two looks at the counters.
counted() {
	cat /sys/kernel/debug/collector >"/mnt/out/$1.$2.before"
	"${@:3}"
	cat /sys/kernel/debug/collector >"/mnt/out/$1.$2.after"
}

# The side of siw connects; a is siw's end then, b riwarp's.
established() {
	ask a connect "$IP4_B" "$PORT"
	ASKED=$ANSWER
	await b 'request *'
	read -r _ GOT _ <<<"$EVENT"
}

accepted() {
	ask b accept "$GOT"
	await b "established $GOT"
	await a "established $ASKED"
}

connects() {
	local n
	for n in 1 2 3; do
		counted request "$n" established
		ask b prepare "$GOT"
		counted accept "$n" accepted
	done
}

written() {
	ask a write "$C" "$FROM" 0 3000 "$AT" "$KEY" -
	await a "wc $C send * success"
}

sent() {
	ask a send "$GOT_BY" 1000 -
	await b "wc $GOT recv * success"
}

ends_up siw-client
agent a "$NS_A" "$IP4_A"
agent b "$NS_B" "$IP4_B"
ask b set auto 0
ask b listen "$PORT"
connects
GOT_BY=$ASKED
for n in 1 2 3; do
	ask b recv "$GOT" 1
	counted send "$n" sent
done
for end in a b; do echo quit >&"${AGENT_IN[$end]}"; done
ends_down

ends_up siw-server
agent a "$NS_A" "$IP4_A"
agent b "$NS_B" "$IP4_B"
ask b listen "$PORT"
ask a connect "$IP4_B" "$PORT"
C=$ANSWER
await a "established $C"
ask a mr 8192 7 0
read -r FROM _ <<<"$ANSWER"
ask b mr 8192 7 0
read -r _ AT KEY <<<"$ANSWER"
for n in 1 2 3; do counted write "$n" written; done
echo 'ok walks'
