# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Sets up the peer on a plain TCP socket (tests/hostile) to play against the device. Sourced after
# lib.sh.

# raw_peer: writes its helper programs, for device DEV_B on NET_B at end B.
raw_peer() {
	# The verbs programs run where the device is, the raw peer at the other end.
	AT_B="ip netns exec $NS_B"
	THERE="nsenter --net=/run/netns/$NS_B"
	if [ "$NS_B" = - ]; then
		THERE='nsenter --net=/proc/1/ns/net'
		AT_B=$THERE
	fi
	cat >"$TMP/agent" <<END
#!/bin/sh
exec $AT_B $VERBS_DIR/agent "\$@"
END
	cat >"$TMP/setting" <<END
#!/bin/bash
case \$1 in
starved) exec nsenter --mount=/proc/1/ns/mnt "$TMP/starve" "\$2" ;;
# Pages that TCP may have on this machine; 0 for as many as it had.
tcp_mem) exec nsenter --net=/proc/1/ns/net sh -c '[ "\$0" = 0 ] || set -- "\$0" "\$0" "\$0"; echo "\$@" >/proc/sys/net/ipv4/tcp_mem' "\$2" $(cat /proc/sys/net/ipv4/tcp_mem) ;;
net_mtu) exec $AT_B ip link set "$NET_B" mtu "\$2" ;;
# Where the device was made: other namespaces have no counters of it.
counter) exec nsenter --mount=/proc/1/ns/mnt cat "/sys/class/infiniband/$DEV_B/ports/1/hw_counters/\$2" ;;
esac
exec $AT_B sh -c 'echo "\$1" >/sys/class/infiniband/$DEV_B/\$0' "\$@"
END
	chmod +x "$TMP/agent" "$TMP/setting"
	# A copy, because it is started often and the checkout is on a slow file system.
	cp "$VERBS_DIR/socket" "$TMP/socket"
	export AGENT=$TMP/agent SETTING=$TMP/setting SOCKET=$TMP/socket THERE
	# In a slow kernel, verbs programs that start together delay each other too much.
	[ "$SLOW" = 1 ] || export WORKERS="${WORKERS:-1}"
}
