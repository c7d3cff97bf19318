#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Measures how figures change with numbers (tests/native/scale.c), in one guest of uml/run or
# qemu/run: connections, queue pairs, regions, registered octets. Both ends of a connection are on
# one device, so the path is the loopback interface. Prints
#
#     row WHAT PARAMETER DEVICE FIGURE UNIT     (separated by tabs)
#
# and at the end a table of medians. DEVICE is siw; riw: riwarp without CRC; rsiw: riwarp_siw
# without CRC; rxe; tcp, sockets, for memory only. With MODULES, riw@FILE and rsiw@FILE.
#
# Arguments NAME=VALUE:
#   WHATS      what is measured: connect at_once qps regions memory register processors
#   DEVICES    see above; they take turns
#   ROUNDS     how often
#   CONNECTS   numbers of connections, one after the other; AT_ONCE: all at the same time, as
#              CONNECTIONS:PROCESSES
#   QPS, REGIONS   numbers of queue pairs and regions of a throughput; SIZE, OCTETS: those of one
#              Write and of all
#   MEMORY_QPS number of queue pairs of a memory figure; REGISTER: MiB, a power of 2
#   PROCESSES  queue pairs, each of a process of its own, for `processors`: run it with one and with
#              two processors
#   MTU        of the loopback interface
#   MODULES    files of riwarp.ko below /mnt/share that take turns (default: the checkout's module)
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

WHATS=${WHATS:-connect at_once qps regions memory register processors}
DEVICES=${DEVICES:-siw riw rsiw tcp}
ROUNDS=${ROUNDS:-3}
CONNECTS=${CONNECTS:-100 1000}
AT_ONCE=${AT_ONCE:-100:1 1000:1 1000:4}
QPS=${QPS:-1 10 100 1000}
REGIONS=${REGIONS:-1 10 100 1000 10000}
SIZE=${SIZE:-4096}
OCTETS=${OCTETS:-268435456}
MEMORY_QPS=${MEMORY_QPS:-1000}
REGISTER=${REGISTER:-64}
PROCESSES=${PROCESSES:-8}
MTU=${MTU:-65536}
read -ra modules <<<"${MODULES:--}"
loaded=''
port=20000

address_of() {
	case $1 in
	siw | tcp) echo 10.74.1.1 ;;
	riw) echo 10.74.2.1 ;;
	rsiw) echo 10.74.4.1 ;;
	rxe) echo 10.74.5.1 ;;
	esac
}

wanted() { [[ " $DEVICES " = *" $1 "* ]]; }

# device NAME TYPE: makes a device on its own interface, if DEVICES has it.
device() {
	wanted "$1" || return 0
	link_add - "$1" "$2" "n$1"
	case $2 in riwarp*) setting - "$1" crc 0 ;; esac
}

# exchange FILE: loads this module in place of the current one and makes riwarp's devices anew.
exchange() {
	local dev
	[ "$1" != "$loaded" ] || return 0
	for dev in riw rsiw; do ! link_exists - "$dev" || link_del - "$dev"; done
	rmmod riwarp
	if [ "$1" = - ]; then modprobe riwarp; else insmod "/mnt/share/$1"; fi
	loaded=$1
	device riw riwarp
	device rsiw riwarp_siw
}

# scale ARGUMENT...: measures one thing on the device of this turn and prints its rows. Each run has
# ports of its own, since those of the last one may not be free yet.
scale() {
	local name=$kind
	[ "$loaded" = - ] || case $kind in r?*) [ "$kind" = rxe ] || name=$kind@${loaded%.ko} ;; esac
	port=$((port + 16))
	if ! timeout "${LIMIT:-120}" "$VERBS_DIR/scale" -a "$(address_of "$kind")" -p "$port" "$@" >"$TMP/said" 2>&1; then
		not_ok "$*/$name" "$(last_line "$TMP/said")"
	fi
	awk -F '\t' -v OFS='\t' -v name="$name" 'NF == 4 { print "row", $1, $2, name, $3, $4 }' "$TMP/said" | tee -a "$TMP/rows"
}

# measure WHAT: measures it on the device of this turn.
measure() {
	local n
	if [ "$kind" = tcp ]; then
		[ "$1" != memory ] || scale -n "$((MEMORY_QPS / 2))" -t "$OCTETS" tcp_memory
		return
	fi
	case $1 in
	connect) for n in $CONNECTS; do scale -n "$n" connect; done ;;
	at_once) for n in $AT_ONCE; do scale -n "$((${n%:*} / ${n#*:}))" -P "${n#*:}" at_once; done ;;
	qps) for n in $QPS; do scale -n "$n" -s "$SIZE" -t "$OCTETS" write; done ;;
	regions) for n in $REGIONS; do scale -r "$n" -s "$SIZE" -t "$OCTETS" write; done ;;
	memory)
		scale -n "$MEMORY_QPS" -k qp objects
		scale -n "$((MEMORY_QPS / 2))" -t "$OCTETS" memory
		;;
	register) scale -t "$((REGISTER << 20))" register ;;
	processors) scale -P "$PROCESSES" -s "$SIZE" -t "$OCTETS" write ;;
	esac
}

load_modules riwarp
! wanted siw || load_modules siw
! wanted rxe || load_modules rdma_rxe
for name in siw riw rsiw rxe; do
	ip link add "n$name" type dummy
	NETDEVS_MADE+=("n$name")
	ip link set "n$name" up
	address_add - "n$name" "$(address_of "$name")/24"
done
ip link set lo mtu "$MTU"
device siw siw
device rxe rxe
exchange "${modules[0]}"
# TCP gives up memory for connections in TIME-WAIT only after a minute, and processors may keep a
# large part of the memory that is free.
sysctl -qw vm.percpu_pagelist_high_fraction=1000000 net.ipv4.tcp_max_tw_buckets=0 \
	net.core.somaxconn=4096 net.ipv4.tcp_max_syn_backlog=4096
: >"$TMP/rows"
for what in $WHATS; do
	for ((round = 0; round < ROUNDS; round++)); do
		for kind in $DEVICES; do
			case $kind in riw | rsiw) ;; *) measure "$what" ;; esac
		done
		for ((i = 0; i < ${#modules[@]}; i++)); do
			exchange "${modules[round % 2 ? ${#modules[@]} - 1 - i : i]}"
			for kind in $DEVICES; do
				case $kind in riw | rsiw) measure "$what" ;; esac
			done
		done
	done
done

awk -F '\t' '
function median(key,   n, i, j, t, a) {
	n = count[key]
	if (!n) return "-"
	for (i = 1; i <= n; i++) a[i] = figure[key, i]
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && a[j] < a[j - 1]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
	return sprintf("%.4g", n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2)
}
{
	line = $2 FS $3 FS $6
	if (!(line in seen)) { seen[line] = 1; lines[++rows] = line }
	if (!($4 in known)) { known[$4] = 1; devices[++columns] = $4 }
	key = line FS $4
	figure[key, ++count[key]] = $5 + 0
}
END {
	printf "\n%-20s %-22s %-7s", "what", "parameter", "unit"
	for (c = 1; c <= columns; c++) printf " %12s", devices[c]
	print ""
	for (r = 1; r <= rows; r++) {
		split(lines[r], field, FS)
		printf "%-20s %-22s %-7s", field[1], field[2], field[3]
		for (c = 1; c <= columns; c++) printf " %12s", median(lines[r] FS devices[c])
		print ""
	}
}' "$TMP/rows"
finish
