#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Sends generated and mutated conversations to the device over a veth pair (tests/fuzz). SECONDS=NN
# is the duration, 20 by default; SEED=N the first seed.
set -eu
limit=20
for setting in "$@"; do
	case $setting in SECONDS=*) limit=${setting#*=} ;; esac
done
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

load_modules "$MODULE"
ENDS_COUNT=1
veth_ends ria1 rib1 1500
link_add "$NS_B" "${TYPE}b" "$TYPE" "$NET_B"

# The verbs program runs in the namespace of the device, the peer in the other.
cat >"$TMP/agent" <<END
#!/bin/sh
exec ip netns exec $NS_B $VERBS_DIR/agent "\$@"
END
chmod +x "$TMP/agent"
VERBOSE=1 RELAY_NAME=mutants relay $((limit + 90)) ip netns exec "$NS_A" "$VERBS_DIR/mutants" \
	"$TMP/agent" "$IP4_B" "$IP4_A" 7900 "$limit" "${SEED:-$RANDOM$RANDOM}"
finish
