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
	local job
	for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || true; done
	wait
}
