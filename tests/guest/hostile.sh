#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# A peer on a plain TCP socket against the device, over a veth pair with an MTU of 1500.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=starve.sh
. "$(dirname "$0")/starve.sh"

load_modules "$MODULE"
ENDS_COUNT=1
# siw exists in the initial namespace only.
if [ "$TYPE" = siw ]; then veth_ends ria1 - 1500; else veth_ends ria1 rib1 1500; fi
DEV_B=${TYPE}b
link_add "$NS_B" "$DEV_B" "$TYPE" "$NET_B"

# The verbs programs have to be where the device is, the raw peer at the other end.
AT_B="ip netns exec $NS_B"
[ "$NS_B" != - ] || AT_B='nsenter --net=/proc/1/ns/net'
cat >"$TMP/puppet" <<END
#!/bin/sh
exec $AT_B $VERBS_DIR/puppet "\$@"
END
cat >"$TMP/setting" <<END
#!/bin/bash
[ "\$1" != starved ] || exec nsenter --mount=/proc/1/ns/mnt "$TMP/starve" "\$2"
exec $AT_B sh -c 'echo "\$1" >/sys/class/infiniband/$DEV_B/\$0' "\$@"
END
# Where the kernel can be told that the next allocation below a function of the module fails: the one that
# gives a queue pair its stream; twice, since for large ones the kernel has a second way. What TCP allocates
# on the module's behalf is not meant.
if can_starve && [ "$TYPE" = riwarp ]; then
	read -r first last < <(awk '/ t .*\[riwarp\]/ { print "0x" $1, $3 }' /proc/kallsyms | sort |
		awk 'first { print first, $1; exit } $2 ~ /^_R.*2qp6stream.*2Qp6attach$/ { first = $1 }')
	[ -n "$first" ] || die 'which addresses has Qp::attach?'
	cat >"$TMP/starve" <<END
#!/bin/bash
. "$GUEST_DIR/starve.sh"
feed
[ "\$1" = 1 ] || exit 0
aim failslab $first $last
starve failslab 100 2
END
	chmod +x "$TMP/starve"
	export STARVABLE=1
fi
# Verbs programs that start together take too long for each other in a slow kernel.
[ "$SLOW" = 1 ] || export WORKERS=1
cat >"$TMP/rping" <<END
#!/bin/bash
[ "\$2" = there ] || exec $AT_B "\$0" "\$1" there
. "$GUEST_DIR/lib.sh"
NS_A=- NS_B=- IP4_B=$IP4_B PORT=\$1
rping_pair 4 3 -S 1000 -V || FAILED=1
finish
END
chmod +x "$TMP/puppet" "$TMP/setting" "$TMP/rping"
# Started often, and the checkout is far away.
cp "$VERBS_DIR/socket" "$TMP/socket"
export PUPPET=$TMP/puppet SETTING=$TMP/setting SOCKET=$TMP/socket RPING=$TMP/rping
# shellcheck disable=SC2086
RELAY_NAME=all relay 800 ip netns exec "$NS_A" "$VERBS_DIR/hostile" "$IP4_B" "$IP4_A" 7900 \
	${HOSTILE_CASES:-}

# The same device again, served by a library that knows nothing of the messages of RFC 7306.
if [ -z "${HOSTILE_CASES:-}" ] && [ "$TYPE" = riwarp ]; then
	link_del "$NS_B" "$DEV_B"
	link_add "$NS_B" "$DEV_B" riwarp_siw "$NET_B"
	RELAY_NAME=unknown relay 60 ip netns exec "$NS_A" "$VERBS_DIR/hostile" "$IP4_B" "$IP4_A" 7900 unknown
fi
finish
