#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs the blocks of docs/storage.md that name this script, step by step, on one machine that is
# target and host.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=storage.sh
. "$(dirname "$0")/storage.sh"
# shellcheck source=storage_iser.sh
. "$(dirname "$0")/storage_iser.sh"

load_modules riwarp
modprobe -r riwarp
disk_in_memory
mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
# A complete system runs this daemon already.
iscsid_up

# The steps for NVMe take the target down, which stops lockdep (storage_nvme.sh).
UNWATCHED='*_iser'

# Makes one script of all blocks, because later ones use variables of earlier ones. It ends at the
# first command that fails.
{
	declare -f always_on before_case each_end lockdep_works die
	declare -p UNWATCHED
} >"$TMP/steps"
awk '
	/^## / { heading = tolower(substr($0, 4)); gsub(/[^a-z0-9]+/, "_", heading) }
	/^```sh by=tests\/guest\/storage_docs.sh$/ {
		inside = 1
		printf "echo @begin %02d_%s\nbefore_case %02d_%s\n", ++n, heading, n, heading
		next
	}
	/^```$/ && inside { inside = 0; printf "cd /; echo @end %02d_%s\n", n, heading; next }
	inside && /--logout/ { print "always_on" }
	inside' /riwarp/docs/storage.md >>"$TMP/steps"
within 200 bash -eu "$TMP/steps" >"$TMP/said" 2>&1 || true
for name in $(sed -n 's/^echo @begin //p' "$TMP/steps"); do
	if grep -qx "@end $name" "$TMP/said"; then
		ok "$SCRIPT/$name"
	else
		not_ok "$SCRIPT/$name" "$(last_line "$TMP/said")"
		tail -n 20 "$TMP/said" | sed 's/^/# /'
		break
	fi
done
within 20 rdma link del riw0 || not_ok "$SCRIPT/link_del" "$?"
kill "$ISCSID"
finish
