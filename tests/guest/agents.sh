# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Controls verbs programs (verbs/agent.c) from a case. Sourced after lib.sh.

declare -A AGENT_IN AGENT_OUT
EVENTS=()

# agent NAME NETNS ADDRESS: starts an agent on the device with this address.
agent() {
	local in out
	mkfifo "$TMP/$1.in" "$TMP/$1.out"
	exec {in}<>"$TMP/$1.in" {out}<>"$TMP/$1.out"
	AGENT_IN[$1]=$in AGENT_OUT[$1]=$out
	in_ns "$2" "$VERBS_DIR/agent" "$3" <"$TMP/$1.in" >"$TMP/$1.out" 2>&1 &
	hear "$1" && [ "$LINE" = '= ready' ] || die "$1 does not begin: ${LINE:-}"
	rm "$TMP/$1.in" "$TMP/$1.out"
}

# hear NAME: reads its next line into LINE.
hear() { read -r -t $((15 * SLOW)) -u "${AGENT_OUT[$1]}" LINE; }

# ask NAME COMMAND...: sends it a command; its answer is in ANSWER.
ask() {
	local name=$1
	shift
	printf '%s\n' "$*" >&"${AGENT_IN[$name]}"
	while hear "$name"; do
		case $LINE in
		'! '*) EVENTS+=("$name ${LINE#! }") ;;
		'= '*) ANSWER=${LINE#= }; return 0 ;;
		*) die "$name: $*: $LINE" ;;
		esac
	done
	die "$name does not answer: $*"
}

# await NAME EVENT: waits until it reports an event that begins with these words (a pattern), and
# stores the event in EVENT.
await() {
	local i
	while :; do
		for i in "${!EVENTS[@]}"; do
			# shellcheck disable=SC2254
			case ${EVENTS[i]}' ' in
			"$1 "$2' '*)
				EVENT=${EVENTS[i]#"$1 "}
				unset 'EVENTS[i]'
				return 0
				;;
			esac
		done
		hear "$1" || die "$1: no event $2; there were: $(printf '%.60s; ' "${EVENTS[@]}")"
		case $LINE in
		'! '*) EVENTS+=("$1 ${LINE#! }") ;;
		*) die "$1, waiting for $2: $LINE" ;;
		esac
	done
}

# fresh_ends: loads the module anew, and makes two ends again.
fresh_ends() {
	local ns
	rmmod "$MODULE"
	for ns in ria1 rib1; do ip netns del "$ns" 2>/dev/null || true; done
	modprobe "$MODULE"
	ends_up netns
}

# join OCTETS [DEPTH]: connects agent a (at end A) to agent b (at end B), with so many Reads from
# a to b at once. Sets C, a's connection; FROM and AT with KEY, regions of so many octets of a and
# b.
join() {
	agent a "$NS_A" "$IP4_A"
	agent b "$NS_B" "$IP4_B"
	if [ $# = 2 ]; then
		ask a set ord "$2"
		ask b set ird "$2"
	fi
	ask b listen "$PORT"
	ask a connect "$IP4_B" "$PORT"
	C=$ANSWER
	await a "established $C"
	ask a mr "$1" 31 0
	read -r FROM _ <<<"$ANSWER"
	ask b mr "$1" 31 0
	read -r _ AT KEY <<<"$ANSWER"
}
