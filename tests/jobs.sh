# SPDX-License-Identifier: GPL-2.0
#
# Shared by programs that run others in the background.
# shellcheck shell=bash

# in_background COMMAND...: runs it in a process group of its own, so that end_background reaches
# what it has started.
in_background() {
	set -m
	"$@" </dev/null &
	set +m
}

# end_background: ends what in_background has started, and waits for it. For traps on EXIT.
end_background() {
	local job jobs end=$((SECONDS + 30))
	jobs=$(jobs -p)
	for job in $jobs; do kill -- "-$job" 2>/dev/null || true; done
	# Whoever leads a group ends first; the others clean up.
	for job in $jobs; do
		while kill -0 -- "-$job" 2>/dev/null && [ "$SECONDS" -lt "$end" ]; do sleep 0.05; done
	done
	wait
}
