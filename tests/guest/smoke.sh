#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Creation and removal of devices: parameters, links, network devices, namespaces, settings.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# Each case leaves no device behind, so the next one starts without any.
no_devices() { [ -z "$(rdma link show)" ]; }

loads_and_unloads() {
	local i
	for i in {1..10}; do
		modprobe "$MODULE"
		rmmod "$MODULE"
	done
	modprobe "$MODULE"
}

module_has_license_alias_and_version() {
	local version
	modinfo -F license "$MODULE" | grep -q '^GPL' || die "license: $(modinfo -F license "$MODULE")"
	modinfo -F alias "$MODULE" | grep -qx "rdma-link-$TYPE" || die 'no alias for the rdma tool'
	[ -n "$(modinfo -F description "$MODULE")" ] || die 'no description'
	if [ "$MODULE" = riwarp ]; then
		version=$(sed -n 's/^riwarp_version := //p' /riwarp/Kbuild)
		[ "$version" ] && [ "$(modinfo -F version riwarp)" = "$version" ] ||
			die "version: $(modinfo -F version riwarp), not $version"
	fi
	# iw_cm must stay loaded as long as the module may have to release references to it.
	modinfo -F depends "$MODULE" | grep -qw iw_cm || die "depends: $(modinfo -F depends "$MODULE")"
	[ "$TYPE" != siw ] || return 0
	ip link add d0 type dummy
	rdma link add v0 type "$TYPE" netdev d0
	[ "$(cat /sys/class/infiniband/v0/fw_ver)" = "$(sed -n 's/^riwarp_version := //p' /riwarp/Kbuild)" ] ||
		die "version $(cat /sys/class/infiniband/v0/fw_ver)"
	ibv_devinfo -d v0 | grep -qw "fw_ver:[[:space:]]*$(cat /sys/class/infiniband/v0/fw_ver)" ||
		die "version of ibv_devinfo: $(ibv_devinfo -d v0 | grep fw_ver)"
	rdma link del v0
	ip link del d0
}

# The module loads with right values of its parameters only.
wrong_parameters() {
	local parm value
	[ "$TYPE" = riwarp ] || skip_case 'parameters of riwarp'
	rmmod "$MODULE"
	for parm in mpa_rev=0 mpa_rev=3 mpa_rev=255 mpa_rev=256 mpa_rev=-1 mpa_rev=two crc=2 crc=N crc=maybe \
		peer_to_peer=2 eager_responder=x extensions=2 confirm_sends=2 draft_swap=2 ulpdu_limit=65536 receive_wait=3600001 oob_port=65536 port_offset=65536 ird_limit=0 ird_limit=129 \
		ord_limit=0 ord_limit=65536 siw_link_type=2 siw_link_type=N; do
		if modprobe "$MODULE" "$parm" 2>/dev/null; then
			rmmod "$MODULE"
			die "loaded with $parm"
		fi
		[ ! -e "/sys/module/$MODULE" ] || die "still there after $parm"
	done
	for parm in mpa_rev=1 mpa_rev=2 crc=0 crc=1 peer_to_peer=0 eager_responder=1 extensions=1 confirm_sends=1 draft_swap=1 ulpdu_limit=0 receive_wait=0 receive_wait=3600000 \
		oob_port=0 oob_port=24792 port_offset=65535 ird_limit=64 ord_limit=1; do
		modprobe "$MODULE" "$parm" || die "not loaded with $parm"
		ip link add d0 type dummy
		ip link set d0 up
		rdma link add p0 type "$TYPE" netdev d0
		value=$(cat "/sys/class/infiniband/p0/${parm%%=*}")
		[ "${parm#*=}" = N ] && parm=crc=0
		[ "$value" = "${parm#*=}" ] || die "$parm gives a device with $value"
		rmmod "$MODULE"
		ip link del d0
	done
	modprobe "$MODULE"
}

# What version 0.9 called otherwise.
old_setting_names_are_accepted() {
	[ "$TYPE" = riwarp ] || skip_case 'names of riwarp'
	local dir=/sys/class/infiniband/p0
	rmmod "$MODULE"
	modprobe "$MODULE" pairing_port=24795
	logged 'pairing_port is now called oob_port; the next release does not take the old name' ||
		die "$(dmesg | tail -n 3)"
	ip link add d0 type dummy
	ip link set d0 up
	rdma link add p0 type "$TYPE" netdev d0
	[ "$(cat $dir/{oob,pairing}_port | xargs)" = '24795 24795' ] || die "$(cat $dir/{oob,pairing}_port | xargs)"
	echo 24796 >$dir/pairing_port
	[ "$(cat $dir/{oob,pairing}_port | xargs)" = '24796 24796' ] || die "$(cat $dir/{oob,pairing}_port | xargs)"
	! echo 65536 2>/dev/null >$dir/pairing_port || die 'takes what is no port'
	for name in refusals limited timeouts; do
		[ "$(cat $dir/ports/1/hw_counters/{oob,pairing}_$name | xargs)" = '0 0' ] || die "$name"
	done
	rmmod "$MODULE"
	modprobe "$MODULE" oob_port=24797 pairing_port=24798
	rdma link add p0 type "$TYPE" netdev d0
	[ "$(cat $dir/oob_port)" = 24797 ] || die "the old name counts: $(cat $dir/oob_port)"
	rmmod "$MODULE"
	ip link del d0
	modprobe "$MODULE"
}

# logged TEXT: succeeds if the last line of the module in the kernel's log ends like this.
logged() { [[ $(dmesg | grep ' riwarp: ' | tail -n 1) = *"$1" ]]; }

# The link type siw is riwarp's where that was asked for, and only there.
siw_link_type() {
	local conf=/etc/modprobe.d/siw-link-type.conf
	[ "$TYPE" = riwarp ] || skip_case 'a parameter of riwarp'
	rmmod riwarp
	ip addr add 10.70.0.1/32 dev lo
	# The rdma tool must not load siw.
	echo 'blacklist siw' >$conf
	for value in '' siw_link_type=0; do
		# shellcheck disable=SC2086
		modprobe riwarp $value
		if rdma link add s0 type siw netdev lo 2>"$TMP/error"; then die "riwarp $value has a link type siw"; fi
		rmmod riwarp
	done
	# The lines of docs/admin.md.
	grep -E '^(options|alias) .*siw' /riwarp/docs/admin.md >$conf
	[ "$(wc -l <$conf)" = 3 ] || die "not three lines: $(cat $conf)"
	rdma link add s0 type siw netdev lo
	[ ! -e /sys/module/siw ] || die 'siw was loaded'
	[ -e /sys/class/infiniband/s0/oob_port ] || die 'not a device of riwarp'
	ibv_devinfo -d s0 | grep -q 'transport:.*iWARP' || die "libsiw: $(ibv_devinfo -d s0)"
	NS_A=- NS_B=- IP4_B=10.70.0.1
	rping_pair 4 3 -V
	rdma link add s1 type riwarp_siw netdev lo 2>"$TMP/error" && die 'a second device on lo'
	grep -q 'File exists' "$TMP/error" || die "$(cat "$TMP/error")"
	rdma link del s0
	# The name of the module leads to riwarp, too.
	rmmod riwarp
	modprobe siw
	[ ! -e /sys/module/siw ] && [ -e /sys/module/riwarp ] || die "modprobe siw: $(lsmod | grep -w 'siw\|riwarp')"
	modprobe -r siw
	[ ! -e /sys/module/riwarp ] || die 'modprobe -r siw'
	rm $conf
	ip addr del 10.70.0.1/32 dev lo
	modprobe riwarp
}

# RDMA core cannot have two drivers of one link type: whichever comes second is refused.
siw_link_type_alongside_siw() {
	[ "$TYPE" = riwarp ] || skip_case 'a parameter of riwarp'
	rmmod riwarp
	modprobe siw
	if modprobe riwarp siw_link_type=1 2>"$TMP/error"; then die 'both have the link type'; fi
	grep -q 'busy' "$TMP/error" || die "$(cat "$TMP/error")"
	[ ! -e /sys/module/riwarp ] || die 'riwarp is there'
	logged "siw_link_type=1: the kernel's siw is there, and has the link type siw" || die "$(dmesg | tail -n 3)"
	# The refusal has left nothing: the link type is siw's, and riwarp works without.
	modprobe riwarp
	ip link add d0 type dummy
	rdma link add s0 type siw netdev d0
	[ ! -e /sys/class/infiniband/s0/oob_port ] || die 'not a device of siw'
	rdma link del s0
	rmmod riwarp
	rmmod siw
	modprobe riwarp siw_link_type=1
	if modprobe siw 2>"$TMP/error"; then die 'siw came second'; fi
	grep -q 'busy' "$TMP/error" || die "$(cat "$TMP/error")"
	[ ! -e /sys/module/siw ] || die 'siw is there'
	logged 'the module siw is refused: riwarp has its link type (siw_link_type=1)' || die "$(dmesg | tail -n 3)"
	rdma link add s0 type siw netdev d0
	[ -e /sys/class/infiniband/s0/oob_port ] || die 'not a device of riwarp'
	# With a device, too. Then the link type is free.
	rmmod riwarp
	modprobe siw
	rdma link add s0 type siw netdev d0
	rdma link del s0
	rmmod siw
	ip link del d0
	modprobe riwarp
}

# The rdma tool loads the module by itself.
rdma_tool_loads_the_module() {
	rmmod "$MODULE"
	ip link add d0 type dummy
	rdma link add auto0 type "$TYPE" netdev d0
	[ -e "/sys/module/$MODULE" ] || die 'not loaded'
	rdma link del auto0
	ip link del d0
}

add_and_delete() {
	local i
	ip link add d0 type dummy
	ip link set d0 up
	for i in {1..30}; do
		rdma link add again type "$TYPE" netdev d0
		rdma link del again
	done
	no_devices || die "left: $(rdma link show)"
	ip link del d0
}

link_shows_netdev_and_state() {
	ip link add d0 type dummy
	rdma link add s0 type "$TYPE" netdev d0
	rdma link show s0/1 | grep -q 'state DOWN' || die "down: $(rdma link show s0/1)"
	ip link set d0 up
	eventually 5 link_state_is - s0 ACTIVE || die "up: $(rdma link show s0/1)"
	rdma link show s0/1 | grep -q 'netdev d0' || die "$(rdma link show s0/1)"
	ip link set d0 down
	eventually 5 link_state_is - s0 DOWN || die "down again: $(rdma link show s0/1)"
	ip link set d0 up
	eventually 5 link_state_is - s0 ACTIVE || die "up again: $(rdma link show s0/1)"
	[ "$(cat /sys/class/infiniband/s0/node_type)" = '4: RNIC' ] ||
		die "node type $(cat /sys/class/infiniband/s0/node_type)"
	rdma link del s0
	ip link del d0
}

link_state_follows_carrier() {
	ip link add va type veth peer name vb
	ip link set va up
	rdma link add c0 type "$TYPE" netdev va
	rdma link show c0/1 | grep -q 'state DOWN' || die "without carrier: $(rdma link show c0/1)"
	ip link set vb up
	eventually 5 link_state_is - c0 ACTIVE || die "with carrier: $(rdma link show c0/1)"
	ip link set vb down
	eventually 5 link_state_is - c0 DOWN || die "carrier lost: $(rdma link show c0/1)"
	rdma link del c0
	ip link del va
}

second_link_on_a_netdev() {
	ip link add d0 type dummy
	rdma link add one type "$TYPE" netdev d0
	if rdma link add two type "$TYPE" netdev d0 2>"$TMP/error"; then die 'a device was made'; fi
	grep -q 'File exists' "$TMP/error" || die "$(cat "$TMP/error")"
	if link_exists - two; then die 'a second device is there'; fi
	rdma link del one
	rdma link add two type "$TYPE" netdev d0
	rdma link del two
	ip link del d0
}

device_name_in_use_is_refused() {
	ip link add d0 type dummy
	ip link add d1 type dummy
	rdma link add same type "$TYPE" netdev d0
	if rdma link add same type "$TYPE" netdev d1 2>"$TMP/error"; then die 'a device was made'; fi
	[ "$(rdma link show | wc -l)" = 1 ] || die "$(rdma link show)"
	# The other netdev is still free.
	rdma link add other type "$TYPE" netdev d1
	rdma link del same
	rdma link del other
	ip link del d0
	ip link del d1
}

invalid_device_names_are_refused() {
	local name
	ip link add d0 type dummy
	for name in '' "$(printf 'x%.0s' {1..100})" 'a/b' . ..; do
		if rdma link add "$name" type "$TYPE" netdev d0 2>/dev/null; then die "made '$name'"; fi
	done
	no_devices || die "$(rdma link show)"
	rdma link add fine type "$TYPE" netdev d0
	rdma link del fine
	ip link del d0
}

unsuitable_netdevs_are_refused() {
	local kind tried=''
	if rdma link add x0 type "$TYPE" netdev nosuch0 2>/dev/null; then die 'made without a netdev'; fi
	for kind in vcan nlmon; do
		# The cloud flavours of Debian's kernels have no CAN.
		modprobe "$kind" 2>/dev/null || { echo "no $kind in this kernel"; continue; }
		tried=1
		ip link add unfit0 type "$kind" || die "cannot make a $kind"
		ip link set unfit0 up
		if rdma link add x0 type "$TYPE" netdev unfit0 2>/dev/null; then die "made on $kind"; fi
		ip link del unfit0
	done
	[ "$tried" ] || skip_case 'this kernel has no such interfaces'
	no_devices || die "$(rdma link show)"
}

vlan_id() { [ "$1" != vlan ] || echo id 7; }

suitable_netdevs_are_accepted() {
	local kind n=0
	modprobe tun || skip_case 'this kernel has no tun'
	for kind in dummy bridge veth vlan macvlan 'ipip local 10.9.9.1' \
		'sit local 10.9.9.1' tun; do
		n=$((n + 1))
		# shellcheck disable=SC2086
		case $kind in
		tun) ip tuntap add fit$n mode tun ;;
		vlan | macvlan) ip link add link eth0 name fit$n type $kind $(vlan_id $kind) ;;
		*) ip link add fit$n type $kind ;;
		esac || die "cannot make $kind"
		ip link set fit$n up
		rdma link add f$n type "$TYPE" netdev fit$n || die "not made on $kind"
		rdma link del f$n
		ip link del fit$n
	done
	rdma link add l0 type "$TYPE" netdev lo || die 'not made on lo'
	rdma link del l0
}

# With the port mapper's daemon, the kernel makes an entry for each listener and each connection; it
# finds a connection's again by the addresses that the driver reports.
port_mapper_entries_are_removed() {
	local tracing=/sys/kernel/tracing
	mountpoint -q $tracing || mount -t tracefs none $tracing 2>/dev/null || skip_case 'this kernel has no trace events'
	[ -e $tracing/kprobe_events ] || skip_case 'this kernel has no kprobes'
	# shellcheck disable=SC2016
	echo 'r:forgotten iw_cm:iwpm_remove_mapinfo status=$retval:s32' >$tracing/kprobe_events
	echo 1 >$tracing/events/kprobes/forgotten/enable
	ip addr add 10.70.0.1/32 dev lo
	rdma link add l0 type "$TYPE" netdev lo
	iwpmd
	eventually 20 mapper_listens || die 'the port mapper does not listen'
	NS_A=- NS_B=- IP4_B=10.70.0.1
	# The first listener makes the kernel ask for the port mapper. The kernel remembers where the
	# answer goes only after it has asked: the listener's priority keeps iwpmd from answering first.
	pair 60 chrt --fifo 1 rping -s -a "$IP4_B" -p "$PORT" -C 5 -- rping -c -a "$IP4_B" -p "$PORT" -C 5
	for _ in 1 2; do rping_pair 4 5; done
	kill "$(pidof iwpmd)"
	rdma link del l0
	ip addr del 10.70.0.1/32 dev lo
	echo 0 >$tracing/events/kprobes/forgotten/enable
	grep -o 'forgotten: .*' $tracing/trace >"$TMP/forgotten" || die 'nothing was forgotten'
	echo >$tracing/kprobe_events
	# Of each connection one at the end that connects, and one of its listener.
	[ "$(grep -c 'status=0$' "$TMP/forgotten")" -ge 4 ] || die "too little was forgotten: $(last_line "$TMP/forgotten")"
	! grep -v 'status=0$' "$TMP/forgotten" || die 'an entry was not found again'
}

# The kernel's requests go to a group of the netlink protocol NETLINK_RDMA.
mapper_listens() { awk '$2 == 20 && $4 != "00000000" { found = 1 } END { exit !found }' /proc/net/netlink; }

# A VLAN has the hardware address of its interface. Kernel consumers know a device by its GUID.
each_device_has_a_guid() {
	ip link add guid0 type dummy && ip link add link guid0 name guid1 type vlan id 7 ||
		skip_case 'this kernel has no such interfaces'
	rdma link add g0 type "$TYPE" netdev guid0
	rdma link add g1 type "$TYPE" netdev guid1
	[ "$(sort -u /sys/class/infiniband/g[01]/node_guid | wc -l)" = 2 ] ||
		die "$(cat /sys/class/infiniband/g[01]/node_guid)"
	rdma link del g1
	rdma link del g0
	ip link del guid0
}

# On lo, with an address other than 127.0.0.1.
device_on_lo_works() {
	ip addr add 10.70.0.1/32 dev lo
	rdma link add l0 type "$TYPE" netdev lo
	eventually 5 link_state_is - l0 ACTIVE || die "$(rdma link show)"
	NS_A=- NS_B=- IP4_B=10.70.0.1
	rping_pair 4 3 -V
	rdma link del l0
	ip addr del 10.70.0.1/32 dev lo
}

# on_loopback COMMAND...: with an interface d0, for both link types of iWARP.
on_loopback() {
	local type
	[ "$TYPE" = riwarp ] || skip_case 'one run for both link types'
	trap 'set +e; { rdma link del on_lo; ip link del d0; ip netns del elsewhere; } 2>/dev/null' EXIT
	ip link add d0 type dummy
	ip link set d0 up
	ip addr add 10.70.1.1/24 dev d0
	for type in riwarp riwarp_siw; do
		TYPE=$type
		"$@"
	done
	trap - EXIT
	ip link del d0
}

# rping_at ADDRESS
rping_at() {
	PORT=$((PORT + 1))
	pair 30 rping -s -a "$1" -p "$PORT" -C 3 -V -- rping -c -a "$1" -p "$PORT" -C 3 -V
}

# called NETDEV: how many connections its device was asked about.
called() { counter "on_$1" connect_requests; }

# loopback_addresses NETDEV...: connects over loopback addresses with devices on these interfaces,
# of which the first gets the connections.
loopback_addresses() {
	local netdev address
	NS_A=- NS_B=-
	# rdma_cm connects from the device that came first.
	for netdev in $(printf '%s\n' "$@" | sort $ORDER); do
		rdma link add "on_$netdev" type "$TYPE" netdev "$netdev"
		eventually 5 link_state_is - "on_$netdev" ACTIVE || die "$(rdma link show)"
	done
	for address in 127.0.0.1 ::1 localhost 127.1.2.3; do
		rping_at "$address" || die "$TYPE, $*: $address"
	done
	[ "$(called "$1")" = 4 ] || die "$TYPE, $*: $(called "$1") of 4 connections are of $1"
	for netdev; do rdma link del "on_$netdev"; done
}

loopback_with_a_device_on_lo() { ORDER='' on_loopback loopback_addresses lo; }
loopback_with_a_device_elsewhere() { ORDER='' on_loopback loopback_addresses d0; }
loopback_with_two_devices() { ORDER='' on_loopback loopback_addresses lo d0; }
loopback_with_two_devices_in_reverse() { ORDER=-r on_loopback loopback_addresses lo d0; }

# A listener on a loopback address keeps its port as devices come and go.
loopback_listener_outlives_devices() { on_loopback outlives_devices; }
outlives_devices() {
	local server
	rdma link add on_lo type "$TYPE" netdev lo
	start - "$TMP/server" rping -s -P -a 127.0.0.1 -p "$PORT" -V -C 2
	server=$STARTED
	wait_listen "$PORT" || die "$(last_line "$TMP/server")"
	reaches_loopback 'on lo'
	rdma link add on_d0 type "$TYPE" netdev d0
	reaches_loopback 'on both'
	rdma link del on_lo
	reaches_loopback 'on d0'
	rdma link del on_d0
	eventually 5 listens_nowhere || die "left: $(ss -Htln "sport = :$PORT")"
	rdma link add on_d0 type "$TYPE" netdev d0
	reaches_loopback 'on a new device'
	kill "$server"
	wait "$server" || true
	rdma link del on_d0
}
reaches_loopback() { within 20 rping -c -a 127.0.0.1 -p "$PORT" -V -C 2 || die "$TYPE, $1"; }
listens_nowhere() { [ -z "$(ss -Htln "sport = :$PORT")" ]; }

# A listener on a loopback address opens that address only, and no other listener gets its port: not
# another one of rdma_cm, and not one beside a program of TCP.
loopback_listener_is_alone() { on_loopback alone; }
alone() {
	local server
	rdma link add on_lo type "$TYPE" netdev lo
	rdma link add on_d0 type "$TYPE" netdev d0
	start - "$TMP/server" rping -s -P -a 127.0.0.1 -p "$PORT"
	server=$STARTED
	wait_listen "$PORT" || die "$(last_line "$TMP/server")"
	[ "$(ss -Htln "sport = :$PORT" | awk '{ print $4 }')" = "127.0.0.1:$PORT" ] ||
		die "$TYPE: $(ss -Htln "sport = :$PORT")"
	# rdma_cm's own rule: a loopback address stands for all (cma_check_port()).
	refuses_listener 127.0.0.1 'Cannot assign requested address'
	refuses_listener 127.0.0.2 'Cannot assign requested address'
	if python3 -c "import socket; socket.create_server(('127.0.0.1', $PORT))" 2>/dev/null; then
		die "$TYPE: a program of TCP has got the port"
	fi
	kill "$server"
	wait "$server" || true
	eventually 5 listens_nowhere || die "left: $(ss -Htln "sport = :$PORT")"
	hold_port "$PORT"
	refuses_listener 127.0.0.1 'Address already in use'
	kill "$STARTED"
	wait "$STARTED" || true
	PORT=$((PORT + 1))
	rdma link del on_d0
	rdma link del on_lo
}
# refuses_listener ADDRESS WHY
refuses_listener() {
	local rc=0
	within 10 rping -s -a "$1" -p "$PORT" -C 1 >"$TMP/refused" 2>&1 || rc=$?
	[ "$rc" != 0 ] && [ "$rc" != 124 ] || die "$TYPE: a listener on $1: status $rc"
	grep -q "$2" "$TMP/refused" || die "$TYPE: a listener on $1: $(cat "$TMP/refused")"
}

# A loopback address is that of the program's namespace. rdma_cm takes the first device of the host
# for it.
loopback_of_a_namespace() { on_loopback of_a_namespace; }
of_a_namespace() {
	local server
	netns_add elsewhere
	ip -n elsewhere link add d1 type dummy
	ip -n elsewhere link set d1 up
	# glibc maps 127.0.0.1 to an IPv6 address where d1 has addresses of IPv6 only.
	ip -n elsewhere addr add 10.70.2.1/24 dev d1
	rdma link add on_d0 type "$TYPE" netdev d0
	in_ns elsewhere rdma link add on_d1 type "$TYPE" netdev d1
	# A listener opens no port in another namespace, and has no connection from there.
	start - "$TMP/server" rping -s -P -a 127.0.0.1 -p "$PORT"
	server=$STARTED
	wait_listen "$PORT" || die "$(last_line "$TMP/server")"
	[ -z "$(in_ns elsewhere ss -Htln "sport = :$PORT")" ] || die "$TYPE: it listens elsewhere"
	in_ns elsewhere within 20 rping -c -a 127.0.0.1 -p "$PORT" -C 1 >"$TMP/client" 2>&1 &&
		die "$TYPE: a client elsewhere reaches it"
	grep -q 'CONNECT_ERROR, error -101' "$TMP/client" || die "$TYPE: $(cat "$TMP/client")"
	within 20 rping -c -a 127.0.0.1 -p "$PORT" -V -C 2 || die "$TYPE: not reached"
	kill "$server"
	wait "$server" || true
	rdma link del on_d0
	in_ns elsewhere rdma link del on_d1
	netns_del elsewhere
}

netdev_removal_removes_device() {
	local i
	for i in {1..10}; do
		ip link add d0 type dummy
		ip link set d0 up
		rdma link add gone type "$TYPE" netdev d0
		ip link del d0
		no_devices || die "left: $(rdma link show)"
	done
}

netdev_is_renamed() {
	ip link add d0 type dummy
	rdma link add r0 type "$TYPE" netdev d0
	ip link set d0 name d9
	eventually 5 shows_netdev r0 d9 || die "$(rdma link show r0/1)"
	rdma link del r0
	ip link del d9
}

shows_netdev() { rdma link show "$1/1" | grep -q "netdev $2"; }

device_is_renamed() {
	ip link add d0 type dummy
	ip link set d0 up
	rdma link add r0 type "$TYPE" netdev d0
	rdma dev set r0 name r9
	eventually 5 link_state_is - r9 ACTIVE || die "$(rdma link show)"
	rdma link del r9
	ip link del d0
}

many_devices() {
	local i
	for i in {1..30}; do
		ip link add "d$i" type dummy
		rdma link add "m$i" type "$TYPE" netdev "d$i" || die "device $i"
	done
	[ "$(rdma link show | wc -l)" = 30 ] || die "$(rdma link show | wc -l) devices"
	for i in {1..10}; do rdma link del "m$i"; done
	for i in {11..20}; do ip link del "d$i"; done
	[ "$(rdma link show | wc -l)" = 10 ] || die "$(rdma link show | wc -l) devices"
	rmmod "$MODULE"
	no_devices || die "left by rmmod: $(rdma link show)"
	for i in {1..10} {21..30}; do ip link del "d$i"; done
	modprobe "$MODULE"
}

unloads_with_devices() {
	ip link add d0 type dummy
	ip link set d0 up
	rdma link add u0 type "$TYPE" netdev d0
	rmmod "$MODULE"
	no_devices || die "left: $(rdma link show)"
	modprobe "$MODULE"
	rdma link add u0 type "$TYPE" netdev d0
	rdma link del u0
	ip link del d0
}

# Addresses of the netdev change: new ones accept connections, removed ones do not.
addresses_change() {
	local rc=0
	ends_up self
	rping_pair 4 2
	address_add - "$NET_A" 10.99.1.1/24
	PORT=$((PORT + 1)) IP4_B=10.99.1.1 IP4_A=10.99.1.1
	rping_pair 4 2
	ip addr del 10.99.1.1/24 dev "$NET_A"
	PORT=$((PORT + 1))
	# 124: it listens, and nobody connects.
	within 10 rping -s -a 10.99.1.1 -p "$PORT" -C 1 >/dev/null 2>&1 || rc=$?
	[ "$rc" != 0 ] && [ "$rc" != 124 ] || die 'a server listens on a removed address'
	IP6_B=fd99::1
	address_add - "$NET_A" fd99::1/64
	PORT=$((PORT + 1))
	rping_pair 6 2
	ip link set "$NET_A" address 02:11:22:33:44:55
	PORT=$((PORT + 1)) IP4_B=10.71.1.1
	rping_pair 4 2
	ends_down
}

# gid_is INDEX GID: succeeds if the table has this GID at INDEX.
gid_is() { [ "$(in_ns "$NS_A" cat "/sys/class/infiniband/$DEV_A/ports/1/gids/$1")" = "$2" ]; }

# gid_becomes INDEX GID: waits until it has.
gid_becomes() {
	eventually 5 gid_is "$@" || die "GID $1 is $(in_ns "$NS_A" cat \
		"/sys/class/infiniband/$DEV_A/ports/1/gids/$1") instead of $2"
}

# The GID table lists the interface's addresses. Each keeps its index, except at index 0, which is
# never empty: an IPv4 address takes it over from an IPv6 address, and when the address at index 0
# is removed, the next one moves there.
gids_follow_addresses() {
	local mapped=0000:0000:0000:0000:0000:ffff none=0000:0000:0000:0000:0000:0000:0000:0000 made_up
	NS_A=- DEV_A=${TYPE}a
	modprobe dummy
	ip link add gids type dummy
	NETDEVS_MADE+=(gids)
	sysctl -q -w net.ipv6.conf.gids.addr_gen_mode=1
	ip link set gids address 02:11:22:33:44:55 up
	link_add - "$DEV_A" "$TYPE" gids
	made_up=fe80:0000:0000:0000:0011:22ff:fe33:4455
	gid_becomes 0 $made_up
	gid_becomes 1 $none
	address_add - gids fd01::1/64
	gid_becomes 0 fd01:0000:0000:0000:0000:0000:0000:0001
	ip addr add fd02::2/64 dev gids # its duplicate address detection is running
	gid_becomes 1 fd02:0000:0000:0000:0000:0000:0000:0002
	address_add - gids 10.9.8.7/24
	gid_becomes 0 $mapped:0a09:0807
	gid_becomes 1 fd02:0000:0000:0000:0000:0000:0000:0002
	gid_becomes 2 fd01:0000:0000:0000:0000:0000:0000:0001
	ip addr del fd02::2/64 dev gids
	gid_becomes 1 $none
	gid_becomes 2 fd01:0000:0000:0000:0000:0000:0000:0001
	address_add - gids 10.9.8.6/24
	gid_becomes 1 $mapped:0a09:0806
	ip addr del 10.9.8.7/24 dev gids # this removes the secondary address too
	gid_becomes 0 fd01:0000:0000:0000:0000:0000:0000:0001
	gid_becomes 1 $none
	gid_becomes 2 $none
	ip addr flush dev gids
	gid_becomes 0 $made_up
	ends_down
}

mtu_changes() {
	ends_up netns 1500
	rping_pair 4 2 -S 10000 -V
	ends_mtu 9000
	PORT=$((PORT + 1))
	rping_pair 4 2 -S 10000 -V
	ends_mtu 1300
	PORT=$((PORT + 1))
	rping_pair 4 2 -S 10000 -V
	ends_down
}

settings() {
	local dir=/sys/class/infiniband/set0 bad
	[ "$TYPE" = riwarp ] || skip_case 'settings of riwarp'
	ip link add d0 type dummy
	rdma link add set0 type "$TYPE" netdev d0
	[ "$(cat $dir/crc)" = 1 ] || die "crc is $(cat $dir/crc) by default"
	[ "$(cat $dir/mpa_rev)" = 2 ] || die "mpa_rev is $(cat $dir/mpa_rev) by default"
	for bad in 2 -1 x '' 1x; do
		if echo "$bad" 2>/dev/null >$dir/crc; then die "crc accepts '$bad'"; fi
		if echo "$bad" 2>/dev/null >$dir/peer_to_peer; then die "peer_to_peer accepts '$bad'"; fi
	done
	for bad in 0 3 -1 x '' 256; do
		if echo "$bad" 2>/dev/null >$dir/mpa_rev; then die "mpa_rev accepts '$bad'"; fi
	done
	for bad in 0 129 -1 x '' 65537; do
		if echo "$bad" 2>/dev/null >$dir/ird_limit; then die "ird_limit accepts '$bad'"; fi
		if echo "$bad" 2>/dev/null >$dir/ord_limit; then die "ord_limit accepts '$bad'"; fi
	done
	echo 64 >$dir/ird_limit
	echo 32 >$dir/ord_limit
	[ "$(cat $dir/ird_limit) $(cat $dir/ord_limit)" = '64 32' ] || die 'the limits do not change'
	for bad in 65536 -1 x ''; do
		if echo "$bad" 2>/dev/null >$dir/port_offset; then die "port_offset accepts '$bad'"; fi
		if echo "$bad" 2>/dev/null >$dir/ulpdu_limit; then die "ulpdu_limit accepts '$bad'"; fi
	done
	for bad in 3600001 -1 x ''; do
		if echo "$bad" 2>/dev/null >$dir/receive_wait; then die "receive_wait accepts '$bad'"; fi
	done
	eventually 5 depths_are 64 32 || die "depths: $(ibv_devinfo -v -d set0)"
	echo 0 >$dir/crc
	[ "$(cat $dir/crc)" = 0 ] || die 'crc does not change'
	echo 1 >$dir/mpa_rev
	[ "$(cat $dir/mpa_rev)" = 1 ] || die 'mpa_rev does not change'
	rdma link del set0
	rdma link add set0 type "$TYPE" netdev d0
	[ "$(cat $dir/crc)" = 1 ] || die 'a new device has the old setting'
	rdma link del set0
	ip link del d0
}

# depths_are IRD ORD: succeeds if programs are told these.
depths_are() {
	ibv_devinfo -v -d set0 | grep -q "max_qp_rd_atom:[[:space:]]*$1\$" &&
		ibv_devinfo -v -d set0 | grep -q "max_qp_init_rd_atom:[[:space:]]*$2\$"
}

# By the names of InfiniBand adapters, where collectors of metrics look: what docs/counters.md says of
# each is true, and the files of a device of another driver are as without one of riwarp.
port_counters() {
	local dir=/sys/class/infiniband/l0/ports/1/counters name counter unit n=0 beside=''
	[ "$TYPE" != siw ] || skip_case 'the kernel'"'"'s siw has none'
	ip addr add 10.70.0.1/32 dev lo
	ip link add d0 type dummy
	! modprobe rdma_rxe || {
		rdma link add x0 type rxe netdev d0
		beside=$(cd /sys/class/infiniband/x0/ports/1 && find . | sort)
	}
	rdma link add l0 type "$TYPE" netdev lo
	[ "$(cat $dir/* | sort -u)" = 0 ] || die "$(grep . $dir/*)"
	[ "$(stat -c '%a %U' $dir/* | sort -u)" = '444 root' ] || die "$(ls -l $dir)"
	eventually 5 link_state_is - l0 ACTIVE || die "$(rdma link show)"
	NS_A=- NS_B=- IP4_B=10.70.0.1
	for _ in 1 2 3; do rping_pair 4 5 -S 4000; done
	nothing_left 10 qp
	while read -r name counter unit; do
		n=$((n + 1))
		eventually 5 counts_as "$dir/$name" "$counter" "${unit:-1}" ||
			die "$name is $(cat "$dir/$name"), $counter $(counter l0 "$counter")"
	done < <(sed -n 's/^| `\(\w*\)` | `\(\w*\)`\(, in units of \([0-9]*\) octets\)\? |.*/\1 \2 \4/p' /riwarp/docs/counters.md)
	[ "$n" = "$(find $dir -type f | wc -l)" ] || die "$n of the page, $(ls $dir)"
	[ "$(cat $dir/port_xmit_data)" -gt 1000 ] && [ "$(cat $dir/unicast_rcv_packets)" -gt 10 ] || die "$(grep . $dir/*)"
	[ -z "$beside" ] || [ "$beside" = "$(cd /sys/class/infiniband/x0/ports/1 && find . | sort)" ] || die 'of rxe'
	rdma link del l0
	[ -z "$beside" ] || rdma link del x0
	ip link del d0
	ip addr del 10.70.0.1/32 dev lo
}
# counts_as FILE COUNTER UNIT
counts_as() { [ "$(cat "$1")" = $(($(counter l0 "$2") / $3)) ]; }

in_a_namespace() {
	ends_up netns
	rping_pair 4 3 -V
	ends_down
}

namespace_exits() {
	local i
	for i in {1..5}; do
		netns_add gone
		ip -n gone link add d0 type dummy
		ip -n gone link set d0 up
		in_ns gone rdma link add n0 type "$TYPE" netdev d0
		netns_del gone
		eventually 10 no_devices || die "left: $(rdma link show)"
	done
}

# A device is removed when its netdev moves to another namespace.
netdev_changes_namespace() {
	# A name of its own: that of a device whose namespace has gone is taken until all is done.
	netns_add other
	ip link add d0 type dummy
	ip link set d0 up
	rdma link add moved0 type "$TYPE" netdev d0
	ip link set d0 netns other
	eventually 10 no_devices || die "left: $(rdma link show)"
	in_ns other rdma link add moved1 type "$TYPE" netdev d0
	in_ns other rdma link del moved1
	netns_del other
}

# What a device of the link type riwarp_ib says it is, and to whom: rdma_cm does not know it, so no
# program reaches it that way, and no consumer in the kernel.
says_it_is_infiniband() {
	local port=/sys/kernel/config/nvmet/ports/7
	[ "$TYPE" = riwarp ] || skip_case 'has a link type of its own'
	ip link add d0 type dummy
	ip link set d0 up
	ip addr add 10.73.9.1/24 dev d0
	rdma link add ib0 type riwarp_ib netdev d0
	eventually 5 link_state_is - ib0 ACTIVE || die "$(rdma link show)"
	dmesg | grep -q 'riwarp: ib0: device added on d0, link type riwarp_ib' || die 'the log does not say its type'
	[ "$(cat /sys/class/infiniband/ib0/node_type)" = '1: CA' ] || die "node type $(cat /sys/class/infiniband/ib0/node_type)"
	[ "$(cat /sys/class/infiniband/ib0/ports/1/link_layer)" = Ethernet ] ||
		die "link layer $(cat /sys/class/infiniband/ib0/ports/1/link_layer)"
	ibv_devinfo -d ib0 | grep -q 'transport:.*InfiniBand (0)' || die "$(ibv_devinfo -d ib0)"
	grep -q '0000:ffff:0a49:0901$' /sys/class/infiniband/ib0/ports/1/gids/0 ||
		die "GID $(cat /sys/class/infiniband/ib0/ports/1/gids/0)"
	rdma_cm_refuses 10.73.9.1
	# A consumer in the kernel that listens there.
	modprobe nvmet-rdma
	mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
	mkdir -p /sys/kernel/config/nvmet/subsystems/ib "$port"
	echo rdma >"$port/addr_trtype"
	echo ipv4 >"$port/addr_adrfam"
	echo 10.73.9.1 >"$port/addr_traddr"
	echo 4420 >"$port/addr_trsvcid"
	if ln -s /sys/kernel/config/nvmet/subsystems/ib "$port/subsystems/ib" 2>"$TMP/error"; then
		die 'the NVMe target listens on it'
	fi
	grep 'No such device' "$TMP/error" || die "$(cat "$TMP/error")"
	rmdir "$port" /sys/kernel/config/nvmet/subsystems/ib
	modprobe -r nvmet-rdma
	[ "$(rdma resource show cm_id | grep -c . || true)" = 0 ] || die "$(rdma resource show cm_id)"
	if rdma link add ib1 type riwarp netdev d0 2>/dev/null; then die 'two devices on one interface'; fi
	rdma link del ib0
	ip link del d0
}

# rdma_cm_refuses ADDRESS: a server cannot bind there, and a client cannot resolve it: at once.
rdma_cm_refuses() {
	local rc=0
	refuses_listener "$1" 'No such device'
	within 10 rping -c -a "$1" -p "$PORT" -C 1 >"$TMP/client" 2>&1 || rc=$?
	[ "$rc" != 0 ] && [ "$rc" != 124 ] || die "a client: status $rc"
	grep 'ADDR_ERROR, error -19' "$TMP/client" || die "a client: $(cat "$TMP/client")"
}

load_modules "$MODULE" || exit 1
modprobe -a dummy veth
try loads_and_unloads 60 loads_and_unloads
try module_has_license_alias_and_version 20 module_has_license_alias_and_version
try wrong_parameters 120 wrong_parameters
try old_setting_names_are_accepted 60 old_setting_names_are_accepted
try siw_link_type 90 siw_link_type
try siw_link_type_alongside_siw 60 siw_link_type_alongside_siw
try rdma_tool_loads_the_module 20 rdma_tool_loads_the_module
try add_and_delete 120 add_and_delete
try link_shows_netdev_and_state 30 link_shows_netdev_and_state
try says_it_is_infiniband 60 says_it_is_infiniband
try link_state_follows_carrier 30 link_state_follows_carrier
try second_link_on_a_netdev 20 second_link_on_a_netdev
try device_name_in_use_is_refused 20 device_name_in_use_is_refused
try invalid_device_names_are_refused 20 invalid_device_names_are_refused
try unsuitable_netdevs_are_refused 20 unsuitable_netdevs_are_refused
try suitable_netdevs_are_accepted 60 suitable_netdevs_are_accepted
try each_device_has_a_guid 20 each_device_has_a_guid
try device_on_lo_works 30 device_on_lo_works
try loopback_with_a_device_on_lo 60 loopback_with_a_device_on_lo
try loopback_with_a_device_elsewhere 60 loopback_with_a_device_elsewhere
try loopback_with_two_devices 60 loopback_with_two_devices
try loopback_with_two_devices_in_reverse 60 loopback_with_two_devices_in_reverse
try loopback_listener_outlives_devices 60 loopback_listener_outlives_devices
try loopback_listener_is_alone 60 loopback_listener_is_alone
try loopback_of_a_namespace 60 loopback_of_a_namespace
try port_mapper_entries_are_removed 60 port_mapper_entries_are_removed
try netdev_removal_removes_device 30 netdev_removal_removes_device
try netdev_is_renamed 20 netdev_is_renamed
try device_is_renamed 20 device_is_renamed
try many_devices 120 many_devices
try unloads_with_devices 20 unloads_with_devices
try addresses_change 60 addresses_change
try gids_follow_addresses 60 gids_follow_addresses
try mtu_changes 60 mtu_changes
try settings 30 settings
try port_counters 60 port_counters
try in_a_namespace 30 in_a_namespace
try namespace_exits 60 namespace_exits
try netdev_changes_namespace 30 netdev_changes_namespace
finish
