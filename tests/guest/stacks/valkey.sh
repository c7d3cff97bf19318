# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: Valkey over RDMA (built by qemu/root-stacks, since Debian's valkey-server is
# without). Its rdma-test sets keys of 1 KiB from several threads, saves them in a child of the
# server's, gets them and compares; its run.py starts a server and rdma-test on the first device.

valkey=/usr/lib/valkey

# It exits with 0 whatever the outcome.
run_py() {
	within 550 python3 -u "$valkey/tests/rdma/run.py" 2>&1 | tee "$TMP/run"
	grep -qF "Valkey Over RDMA test over $IP4_B [OK]" "$TMP/run"
}

# valkey_server OPTIONS...: starts a server at end B, for RDMA at PORT and for TCP at the port
# above.
valkey_server() {
	rm -rf "$TMP/valkey"
	mkdir "$TMP/valkey"
	start "$NS_B" "$TMP/valkey.log" within 200 "$valkey/src/valkey-server" --bind "$IP4_B" --port $((PORT + 1)) \
		--rdma-bind "$IP4_B" --rdma-port "$PORT" --protected-mode no --dir "$TMP/valkey" --save '' "$@"
	wait_listen "$PORT"
	wait_listen $((PORT + 1))
}

# valkey_cli COMMAND...: over TCP.
valkey_cli() { in_ns "$NS_A" within 20 "$valkey/src/valkey-cli" -h "$IP4_B" -p $((PORT + 1)) "$@"; }

saved() { grep -q 'Background saving terminated with success' "$TMP/valkey.log"; }

# rdma_test OPTIONS...: at end A. Its output is that of the case too.
rdma_test() {
	in_ns "$NS_A" within 150 "$valkey/tests/rdma/rdma-test" -h "$IP4_B" -p "$PORT" "$@" 2>&1 | tee "$TMP/rdma-test"
	return "${PIPESTATUS[0]}"
}

# valkey_test THREADS KEYS [OPTIONS OF THE SERVER]: rdma-test from end A, with about so many keys a
# thread. What was set over RDMA is there over TCP, and was saved.
valkey_test() {
	local threads=$1 keys=$2 set
	shift 2
	valkey_server "$@"
	over_rdma $((threads * keys * 1024)) rdma_test -t "$threads" -m "$keys" -M $((keys + 10))
	set=$(sed -n 's/.* SET \([0-9]*\) KVs \[OK\]$/\1/p' "$TMP/rdma-test" | awk '{ n += $1 } END { print n }')
	[ "$set" -ge $((keys * threads)) ] || die "only $set keys set"
	[ "$(valkey_cli dbsize)" = "$set" ] || die "$(valkey_cli dbsize) keys over TCP instead of $set"
	eventually 20 saved || die "not saved: $(last_line "$TMP/valkey.log")"
	[ "$(head -c 6 "$TMP/valkey/dump.rdb")" = VALKEY ] || [ "$(head -c 5 "$TMP/valkey/dump.rdb")" = REDIS ] ||
		die 'no file was saved'
	# The receives of a connection that ends are flushed.
	if grep -iE 'RDMA: .*(fail|error|unexpected|unknown)' "$TMP/valkey.log" | grep -v 'Work Request Flushed'; then
		die 'the server reports an error'
	fi
	kill "$STARTED"
	wait "$STARTED" || true
}

# Valkey moves its data by RDMA Write with Immediate and by nothing else.
valkey_refused() {
	valkey_server
	if rdma_test -t 1 -m 1 -M 2; then die 'it works'; fi
	kill "$STARTED"
	grep -q 'RDMA: read timeout' "$TMP/rdma-test" || die 'not for the answer that never comes'
	skip_case 'Valkey writes with Immediate Data, which libsiw has not; use the link type riwarp'
}

version valkey valkey
name=$TYPE/valkey
if [ "$TYPE" = riwarp ]; then
	ends_up self
	try "$name/run_py" 600 over_rdma 500000 run_py
	ends_down
	ends_up netns
	try "$name/one_thread" 200 valkey_test 1 1500
	try "$name/many_threads" 200 valkey_test 32 50
	try "$name/small_buffers" 200 valkey_test 2 300 --rdma-rx-size 65536
	try "$name/large_buffers" 200 valkey_test 2 300 --rdma-rx-size 16777216
	try "$name/in_a_row" 600 in_a_row "$ROW" valkey_test 1 10
else
	ends_up netns
	try "$name/refused" 100 valkey_refused
fi
ends_down
