#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# A peer on a plain TCP socket against the device, over a veth pair with an MTU of 1500.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

load_modules "$TYPE"
ENDS_COUNT=1
# siw exists in the initial namespace only.
if [ "$TYPE" = siw ]; then veth_ends ria1 - 1500; else veth_ends ria1 rib1 1500; fi
DEV_B=${TYPE}b
link_add "$NS_B" "$DEV_B" "$TYPE" "$NET_B"

# The verbs program has to run in the device's namespace and the raw peer in the other.
cat >"$TMP/puppet" <<END
#!/bin/sh
exec $([ "$NS_B" = - ] && echo nsenter --net=/proc/1/ns/net || echo ip netns exec "$NS_B") \
	$VERBS_DIR/puppet "\$@"
END
cat >"$TMP/setting" <<END
#!/bin/sh
exec $([ "$NS_B" = - ] && echo nsenter --net=/proc/1/ns/net || echo ip netns exec "$NS_B") \
	sh -c 'echo "\$1" >/sys/class/infiniband/$DEV_B/\$0' "\$@"
END
chmod +x "$TMP/puppet" "$TMP/setting"
export SETTING="$TMP/setting"
# shellcheck disable=SC2086
RELAY_NAME=all relay 400 ip netns exec "$NS_A" python3 "$GUEST_DIR/wire/hostile.py" "$TMP/puppet" \
	"$IP4_B" "$IP4_A" 7900 ${HOSTILE_CASES:-}
finish
