#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# iWARP over the kernel's TLS, with keys that both ends have and with certificates (docs/tls.md):
# two devices in two network namespaces, each with a tlshd of its own. Programs run unchanged, the
# link below carries nothing in the clear, and each wrong peer gets an error.
set -eu
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=wireshark.sh
. "$(dirname "$0")/wireshark.sh"

clear_again() {
	setting "$NS_A" "$DEV_A" tls off
	setting "$NS_B" "$DEV_B" tls off
	setting "$NS_B" "$DEV_B" tls_accept permit
}

settings_want_keys() {
	local hidden
	! setting "$NS_A" "$DEV_A" tls psk 2>"$TMP/error" || die 'psk without keys'
	! setting "$NS_A" "$DEV_A" tls_key "$RING_A" 2>"$TMP/error" || die 'a keyring for a key'
	! setting "$NS_A" "$DEV_A" tls_keyring "$KEY_A" 2>"$TMP/error" || die 'a key for a keyring'
	! setting "$NS_A" "$DEV_A" tls_key 1 2>"$TMP/error" || die 'a key that does not exist'
	hidden=$(keyctl newring riwarp-hidden @u) && keyctl setperm "$hidden" 0
	! setting "$NS_A" "$DEV_A" tls_keyring "$hidden" 2>"$TMP/error" || die 'a keyring that nobody may read'
	secure "$NS_A" "$DEV_A" "$RING_A" "$KEY_A"
	! setting "$NS_A" "$DEV_A" tls_key 0 2>"$TMP/error" || die 'takes the key away while it is in use'
	[ "$(cat "/sys/class/infiniband/$DEV_A/tls_key")" = "$KEY_A" ] || die 'another key'
	clear_again
}

certificates_want_keys() {
	local wrong
	! setting "$NS_A" "$DEV_A" tls x509 2>"$TMP/error" || die 'x509 without keys'
	! setting "$NS_A" "$DEV_A" tls_cert "$RING_A" 2>"$TMP/error" || die 'a keyring for a certificate'
	! setting "$NS_A" "$DEV_A" tls_privkey "$KEY_A" 2>"$TMP/error" || die 'a psk for a private key'
	certify "$NS_A" "$DEV_A" a
	! setting "$NS_A" "$DEV_A" tls_cert 0 2>"$TMP/error" || die 'takes the certificate away while it is in use'
	for wrong in 'a b' fd00::2 '*.example'; do
		! setting "$NS_A" "$DEV_A" tls_peername "'$wrong'" 2>"$TMP/error" || die "takes the name '$wrong'"
	done
	setting "$NS_A" "$DEV_A" tls_peername b.example
	[ "$(cat "/sys/class/infiniband/$DEV_A/tls_peername")" = b.example ] || die 'another name'
	setting "$NS_A" "$DEV_A" tls_peername ''
	[ -z "$(cat "/sys/class/infiniband/$DEV_A/tls_peername")" ] || die 'the name stays'
	clear_again
}

# page_block TITLE: prints the steps of docs/tls.md below a title.
page_block() {
	sed -n "/^##* $1/,/^##* /"'{ /^```sh by=tests.guest.tls.sh/,/^```$/{ /^```/!p } }' /riwarp/docs/tls.md
}

# page_in END STEPS: runs steps of docs/tls.md at an end, whose device the unit would make.
page_in() {
	local netns=$NS_A netdev=$NET_A steps
	if [ "$1" = B ]; then netns=$NS_B netdev=$NET_B; fi
	# The daemons of this suite are no units.
	systemctl() {
		[[ $* != restart*riwarp@* ]] || in_ns "$netns" /riwarp/utils/riwarp-link add "$netdev" ||
			die "no device of $netdev: $(<"/etc/riwarp.conf")"
	}
	steps=${2//eth0/"$netdev"}
	(eval "${steps//10.0.0.2/"$IP4_B"}")
}

# page_pair KIND: programs work over the devices that both ends have, which are then as before.
page_pair() {
	local end
	[ "$(cat "/sys/class/infiniband/riw_$NET_A/tls")" = "$1" ] || die "$NET_A: not $1"
	[ "$(cat "/sys/class/infiniband/riw_$NET_B/tls")" = "$1" ] || die "$NET_B: not $1"
	cp /etc/riwarp/ca.pem "$TMP/page.pem" 2>/dev/null || true
	tlshd_start "$NS_A" riwarp page
	tlshd_start "$NS_B" riwarp page
	rping_works 4
	tlshd_end
	in_ns "$NS_A" /riwarp/utils/riwarp-link remove "$NET_A"
	in_ns "$NS_B" /riwarp/utils/riwarp-link remove "$NET_B"
	link_add "$NS_A" "$DEV_A" "$TYPE" "$NET_A"
	link_add "$NS_B" "$DEV_B" "$TYPE" "$NET_B"
}
without_devices() {
	link_del "$NS_A" "$DEV_A"
	link_del "$NS_B" "$DEV_B"
	rm -rf /etc/riwarp.conf /etc/riwarp
}

# page_works HEADING LINES OTHER FILE MODE: the steps of a section of docs/tls.md, which are so many
# lines; the last OTHER are those on the other host. Only root can read the file that they make. One
# certificate serves both.
page_works() {
	local steps
	without_devices
	steps=$(page_block "$1")
	[ "$(wc -l <<<"$steps")" = "$2" ] || die "the page has other steps: $steps"
	page_in A "$steps"
	page_in B "$(tail -n "$3" <<<"$steps")"
	[ "$(stat -c %a "/etc/riwarp/$4")" = 600 ] || die 'others can read the key'
	page_pair "$5"
}

# The steps by hand, on one device; the other one has the same keys.
page_by_hand_works() {
	local steps where=/sys/class/infiniband name
	systemctl() { :; }
	mkdir -p /etc/riwarp
	(umask 077 && printf %s "$SECRET" >/etc/riwarp/psk)
	cp "$TMP/b.pem" /etc/riwarp/host.pem
	cp "$TMP/b.key" /etc/riwarp/host.key
	steps=$(page_block 'By hand')
	[ "$(wc -l <<<"$steps")" = 10 ] || die "the page has other steps: $steps"
	steps=${steps//riw0/"$DEV_A"}
	(eval "$(head -n 6 <<<"$steps")")
	secure "$NS_B" "$DEV_B" "$(<"$where/$DEV_A/tls_keyring")" "$(<"$where/$DEV_A/tls_key")"
	tlshd_start "$NS_A" riwarp authority
	tlshd_start "$NS_B" riwarp authority
	rping_works 4
	(eval "$(tail -n 4 <<<"$steps")")
	for name in cert privkey; do setting "$NS_B" "$DEV_B" tls_$name "$(<"$where/$DEV_A/tls_$name")"; done
	setting "$NS_B" "$DEV_B" tls x509
	PORT=$((PORT + 1))
	rping_works 4
	tlshd_end
	setting "$NS_A" "$DEV_A" tls_accept permit
	clear_again
}

# --- riwarp.conf ----------------------------------------------------------------------------------

# file_says END LINES: the file of an end, in which LINES say what its TLS is.
file_says() {
	local netdev=$NET_A device=$DEV_A
	if [ "$1" = B ]; then netdev=$NET_B device=$DEV_B; fi
	printf '%b\n' "[$netdev]" "type = $TYPE" "name = $device" "$2" >"$TMP/riwarp.$1"
}

# link_by_file END add|remove: makes or removes the device of an end as the unit does, to which
# systemd gives a keyring for its session with nothing in it. The keyctl that it finds notes its
# arguments.
link_by_file() {
	local netns=$NS_A netdev=$NET_A
	if [ "$1" = B ]; then netns=$NS_B netdev=$NET_B; fi
	# shellcheck disable=SC2016
	in_ns "$netns" env "PATH=$TMP/bin:$PATH" "RIWARP_CONF=$TMP/riwarp.$1" "RIWARP_TLSHD_CONF=$TMP/tlshd.conf" \
		"CREDENTIALS_DIRECTORY=$TMP/credentials" \
		keyctl session - sh -c 'exec "$@" 2>&3 3>&-' sh /riwarp/utils/riwarp-link "$2" "$netdev" 3>&2 2>/dev/null
}

# tlshd_says KEYRINGS TRUSTSTORE: a file of tlshd's.
tlshd_says() {
	printf '%s\n' '[authenticate]' "keyrings= $1" '[authenticate.client]' "x509.truststore= $2" \
		'[authenticate.server]' "x509.truststore=$2" >"$TMP/tlshd.conf"
}

# files_work KIND LINES LINES: two devices by files with these lines.
files_work() {
	file_says A "tls = $1\ntls_accept = require\n$2"
	file_says B "tls = $1\ntls_accept = require\n$3"
	link_by_file A add
	link_by_file B add
	[ "$(cat "/sys/class/infiniband/$DEV_B/"{tls,tls_accept} | xargs)" = "$1 require" ] || die 'other settings'
	tlshd_start "$NS_A" riwarp authority
	tlshd_start "$NS_B" riwarp authority
	rping_works 4
	riwarp_report_is_silent
	tlshd_end
	link_by_file A remove
	[ "$1" = x509 ] || ! no_keys || die 'B has lost its keys'
	link_by_file B remove
	no_keys || die 'keys stay'
}
no_keys() { ! keyctl rlist "$(keyctl search @u keyring riwarp)" | grep -q '[0-9]'; }
riwarp_report_is_silent() {
	if [ -e /riwarp/utils/riwarp-report ]; then bash /riwarp/utils/riwarp-report >"$TMP/report" 2>&1 || true; fi
	! grep -q -a -F -e "$SECRET" -e "$(sed -n 2p "$TMP/a.key")" "$TMP/report" "$TMP/arguments" || die 'a secret is shown'
}

# file_is_refused STATUS TEXT LINES: such a file gets one line with this text, and no device.
file_is_refused() {
	local rc=0
	file_says A "$3"
	link_by_file A add >"$TMP/said" 2>&1 || rc=$?
	[ "$rc" = "$1" ] || die "status $rc, not $1: $(<"$TMP/said")"
	[ "$(wc -l <"$TMP/said")" = 1 ] && grep -q -F -- "$2" "$TMP/said" || die "not '$2': $(<"$TMP/said")"
	[ ! -e "/sys/class/infiniband/$DEV_A" ] || die "there is a device: $2"
	no_keys || die "keys stay: $2"
}

files_make_keys() {
	local psk="tls_psk_file = $TMP/psk\ntls_identity = riwarp by file"
	local a="tls_cert_file = $TMP/a.pem\ntls_privkey_file = $TMP/a.key"
	local b="tls_cert_file = b.pem\ntls_privkey_file = b.key"
	link_del "$NS_A" "$DEV_A"
	link_del "$NS_B" "$DEV_B"
	mkdir -p "$TMP/bin" "$TMP/credentials"
	printf '#!/bin/sh\necho "$*" >>%s\nexec %s "$@"\n' "$TMP/arguments" "$(command -v keyctl)" >"$TMP/bin/keyctl"
	chmod 755 "$TMP/bin/keyctl"
	(umask 077 && printf %s "$SECRET" >"$TMP/psk" && cp "$TMP/psk" "$TMP"/b.{pem,key} "$TMP/credentials")
	tlshd_says riwarp "$TMP/authority.pem"
	files_work psk "$psk" 'tls_psk_file = psk\ntls_identity = riwarp by file'
	files_work x509 "$a" "$b"

	# What is wrong.
	file_is_refused 78 'wants tls_identity too' "tls = psk\ntls_psk_file = $TMP/psk"
	file_is_refused 78 'wants tls_cert_file too' 'tls = x509'
	file_is_refused 78 'no value of tls:' 'tls = on'
	file_is_refused 78 "unknown key 'tls_keyring'" 'tls_keyring = 1'
	file_is_refused 1 'is no file' "tls = psk\ntls_psk_file = $TMP/nosuch\ntls_identity = x"
	file_is_refused 1 'names the credential nosuch' 'tls = psk\ntls_psk_file = nosuch\ntls_identity = x'
	chmod 640 "$TMP/psk"
	file_is_refused 1 'has the mode 640' "tls = psk\n$psk"
	chmod 600 "$TMP/psk"
	chown 1 "$TMP/psk"
	file_is_refused 1 "is not root's" "tls = psk\n$psk"
	chown 0 "$TMP/psk"
	printf x >>"$TMP/psk"
	file_is_refused 1 'other than 32 octets' "tls = psk\n$psk"
	chmod 644 "$TMP/a.key"
	file_is_refused 1 'has the mode 644' "tls = x509\n$a"
	chmod 600 "$TMP/a.key"
	cat "$TMP/a.pem" "$TMP/b.pem" >"$TMP/two.pem"
	file_is_refused 1 'has 2 of what' "tls = x509\n${a/a.pem/two.pem}"
	sed 2s/^./%/ "$TMP/a.pem" >"$TMP/broken.pem"
	file_is_refused 1 'is not PEM' "tls = x509\n${a/a.pem/broken.pem}"
	file_is_refused 1 'has 0 of what' "tls = x509\n${a/a.pem/a.key}"
	tlshd_says riwarp "$TMP/nosuch.pem"
	file_is_refused 1 'no trust store of its own' "tls = x509\n$a"
	tlshd_says 'riwarp-a;other' "$TMP/authority.pem"
	(umask 077 && printf %s "$SECRET" >"$TMP/psk")
	file_is_refused 1 'does not know the keyring' "tls = psk\n$psk"
	rm "$TMP/tlshd.conf"
	file_is_refused 1 'cannot be read' "tls = psk\n$psk"

	link_add "$NS_A" "$DEV_A" "$TYPE" "$NET_A"
	link_add "$NS_B" "$DEV_B" "$TYPE" "$NET_B"
}

both_certified() {
	certify "$NS_A" "$DEV_A" a
	certify "$NS_B" "$DEV_B" b
	setting "$NS_B" "$DEV_B" tls_accept require
}

both_on() {
	secure "$NS_A" "$DEV_A" "$RING_A" "$KEY_A"
	secure "$NS_B" "$DEV_B" "$RING_B" "$KEY_B"
	setting "$NS_B" "$DEV_B" tls_accept require
}

rping_works() { rping_pair "$1" 20 -V -S 20000; }

streams_have_a_cipher() { with_stream eventually 20 has_cipher || die "$(cat /sys/kernel/debug/riwarp/qps)"; }
has_cipher() { grep -q "^device=$DEV_A .*tls=aes-.* crc=0 " /sys/kernel/debug/riwarp/qps; }

# A stream keeps its network namespace only while a daemon has the socket: so the namespace counts no
# more sockets than without TLS.
stream_does_not_hold_its_namespace() {
	local without
	clear_again
	with_stream counted
	without=$COUNTED
	both_on
	PORT=$((PORT + 1))
	with_stream eventually 10 counts "$without" || die "it counts $COUNTED, without TLS $without"
}
counted() { COUNTED=$(in_ns "$NS_A" sed -n 's/^sockets: used //p' /proc/net/sockstat); }
counts() { counted && [ "$COUNTED" = "$1" ]; }

# with_stream COMMAND...: runs a command while rping has a stream.
with_stream() {
	local client rc=0
	serve 60 rping -s -a "$IP4_B" -p "$PORT" -C 1000000 -V
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	start "$NS_A" "$TMP/client" within 60 rping -c -a "$IP4_B" -p "$PORT" -C 1000000 -V
	client=$STARTED
	eventually 20 grep -q "^device=$DEV_A .*phase=rts" /sys/kernel/debug/riwarp/qps || die 'no stream'
	"$@" || rc=$?
	kill "$client" "$SERVER_PID"
	wait "$client" "$SERVER_PID" || true
	eventually 20 no_streams || die 'the stream does not end'
	return "$rc"
}
no_streams() { ! grep -q . /sys/kernel/debug/riwarp/conns; }

# With a closure alert at both ends.
streams_end_in_order() {
	local before
	before="$(counter "$DEV_A" aborts) $(counter "$DEV_B" aborts)"
	client_server
	PORT=$((PORT + 1))
	rping_works 4
	[ "$(counter "$DEV_A" aborts) $(counter "$DEV_B" aborts)" = "$before" ] || die 'a stream was lost'
}

# Both ends on one device, which close while what was sent is still on its slow way. Whenever TCP has
# room, the transmit task runs, and at no other time.
closes_over_a_slow_link() {
	local before stalls
	before=$(counter "$DEV_A" aborts) stalls=$(counter "$DEV_A" tx_stalls)
	modprobe -q sch_netem
	in_ns "$NS_A" sysctl -qw net.ipv4.tcp_wmem='4096 16384 65536'
	in_ns "$NS_A" tc qdisc add dev lo root netem rate 1mbit
	CASE=sends_before_a_disconnect_arrive in_ns "$NS_A" "$VERBS_DIR/flush" "$IP4_A"
	in_ns "$NS_A" tc qdisc del dev lo root
	[ "$(counter "$DEV_A" aborts)" = "$before" ] || die 'a stream was lost'
	stalls=$(($(counter "$DEV_A" tx_stalls) - stalls))
	echo "# tried $stalls times to send without room"
	[ "$stalls" -lt 1000 ] || die "tried $stalls times to send without room"
}

perftest_works() {
	perftest_pair ib_send_bw -n 2000 -s 4096
	PORT=$((PORT + 1))
	perftest_pair ib_write_bw -n 2000 -s 65536
	PORT=$((PORT + 1))
	perftest_pair ib_read_lat -n 1000 -s 64
	PORT=$((PORT + 1))
	perftest_pair ib_atomic_lat -n 200
}

oob_works() {
	pair 30 ibv_rc_pingpong -c -p "$PORT" -d "$DEV_B" -g 0 -n 200 -s 60000 -- \
		ibv_rc_pingpong -c -p "$PORT" -d "$DEV_A" -g 0 -n 200 -s 60000 "$IP4_B"
}

# refused COMMAND...: fails unless the pair of programs fails and a device has counted a refusal.
refused() {
	local before
	before=$(refusals)
	! "$@" || die 'it connects'
	[ "$(refusals)" -gt "$before" ] || die 'no refusal was counted'
}
refusals() { echo $(($(counter "$DEV_A" tls_refusals) + $(counter "$DEV_B" tls_refusals))); }

# rping's payload begins with this.
PATTERN='rdma-ping-'
# nothing_is_in_the_clear COMMAND: after this command.
nothing_is_in_the_clear() {
	clear_again
	CAPTURED=tcp capture "$NS_A" "$NET_A" "$TMP/plain" rping_works 4
	grep -q -a "$PATTERN" "$TMP/plain" || die 'the pattern is not there without TLS'
	grep -q -a 'MPA ID Req Frame' "$TMP/plain" || die 'no Request without TLS'
	"$1"
	PORT=$((PORT + 1))
	CAPTURED=tcp capture "$NS_A" "$NET_A" "$TMP/secret" rping_works 4
	[ "$(stat -c %s "$TMP/secret")" -gt 20000 ] || die 'nothing was captured'
	! grep -q -a "$PATTERN" "$TMP/secret" || die 'payload in the clear'
	! grep -q -a 'MPA ID' "$TMP/secret" || die 'a start-up frame in the clear'
}

other_secret_is_refused() {
	local other
	other=$(psk "$RING_C" 'riwarp host' 'another secret of 32 octets.....')
	setting "$NS_A" "$DEV_A" tls_key "$other"
	refused rping_pair 4 2 -V
	setting "$NS_A" "$DEV_A" tls_key "$KEY_A"
	PORT=$((PORT + 1))
	rping_works 4
}

unknown_identity_is_refused() {
	local other
	other=$(psk "$RING_C" 'nobody knows' "$SECRET")
	setting "$NS_A" "$DEV_A" tls_key "$other"
	refused rping_pair 4 2 -V
	setting "$NS_A" "$DEV_A" tls_key "$KEY_A"
}

# The daemon at B knows the key, as it knows those of NVMe over TCP; the device's keyring does not.
foreign_key_is_refused() {
	setting "$NS_A" "$DEV_A" tls_key "$KEY_FOREIGN_A"
	until_logged 'not in the keyring of the device' refused rping_pair 4 2 -V
	setting "$NS_A" "$DEV_A" tls_key "$KEY_A"
	rping_works 4
}

clear_text_is_refused() {
	setting "$NS_A" "$DEV_A" tls off
	until_logged 'it begins without TLS' refused rping_pair 4 2 -V
	setting "$NS_B" "$DEV_B" tls_accept permit
	rping_works 4
	both_on
	PORT=$((PORT + 1))
	rping_works 4
}

off_does_not_take_tls() {
	setting "$NS_B" "$DEV_B" tls off
	! rping_pair 4 2 -V || die 'it connects'
	both_on
}

# What the independent peer has: the key that both ends have, or a certificate.
CREDENTIALS="psk:riwarp host:$SECRET"
certificate_of() { echo "x509:$TMP/authority.pem:$TMP/$1.pem:$TMP/$1.key"; }

# peer NETNS ROLE [WAY]: runs the independent peer; its output is in $TMP/peer.
peer() {
	OPENSSL_CONF=$TMP/openssl.cnf in_ns "$1" within 40 python3 "$GUEST_DIR/tls_peer.py" "$2" "$IP4_B" "$PORT" \
		"$CREDENTIALS" "${3:-whole}" >"$TMP/peer" 2>&1
}

# with_certificate NAME COMMAND...: the independent peer has this one.
with_certificate() {
	CREDENTIALS=$(certificate_of "$1") "${@:2}"
}

# An independent peer connects.
independent_peer_connects() {
	serve 40 rdma_server -s "$IP4_B" -p "$PORT"
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	peer "$NS_A" connect "$1" || die "$(last_line "$TMP/peer")"
	wait "$SERVER_PID" || die "server: $(last_line "$SERVER_OUT")"
	grep -q '^ok' "$TMP/peer" || die "$(last_line "$TMP/peer")"
}

# An independent peer accepts.
independent_peer_accepts() {
	local peer
	setting "$NS_A" "$DEV_A" mpa_rev 1
	start "$NS_B" "$TMP/peer" within 40 python3 "$GUEST_DIR/tls_peer.py" accept "$IP4_B" "$PORT" \
		"$CREDENTIALS" "$1"
	peer=$STARTED
	wait_listen "$PORT"
	in_ns "$NS_A" within 40 rdma_client -s "$IP4_B" -p "$PORT" >"$TMP/client" 2>&1 ||
		die "client: $(last_line "$TMP/client"); peer: $(last_line "$TMP/peer")"
	wait "$peer" || die "peer: $(last_line "$TMP/peer")"
	setting "$NS_A" "$DEV_A" mpa_rev 2
	grep -q '^ok' "$TMP/peer" || die "$(last_line "$TMP/peer")"
}

# --- certificates ---------------------------------------------------------------------------------

# Of a stream each device shows the key that the peer's certificate has.
certificates_are_shown() {
	with_stream eventually 20 shows_certificates || die "$(cat /sys/kernel/debug/riwarp/qps)"
}
shows_certificates() {
	grep -q "^device=$DEV_A .*tls=aes-.* tls_peer=$(subject_key_id b) " /sys/kernel/debug/riwarp/qps &&
		grep -q "^device=$DEV_B .*tls=aes-.* tls_peer=$(subject_key_id a) " /sys/kernel/debug/riwarp/qps
}
subject_key_id() {
	openssl x509 -in "$TMP/$1.pem" -noout -ext subjectKeyIdentifier | sed -n '2s/[ :]//gp' | tr A-F a-f
}

# tlshd calls the key of each client's certificate after the name that the device gives it.
many_connect_at_once() {
	local i servers=() clients=()
	for i in {1..8}; do
		serve 60 rping -s -a "$IP4_B" -p $((PORT + i)) -C 2 -V
		servers+=("$SERVER_PID")
	done
	for i in {1..8}; do STARTED=${servers[i - 1]} wait_listen $((PORT + i)); done
	for i in {1..8}; do
		start "$NS_A" "$TMP/client.$i" within 60 rping -c -a "$IP4_B" -p $((PORT + i)) -C 2 -V
		clients+=("$STARTED")
	done
	for i in {1..8}; do wait "${clients[i - 1]}" || die "client $i: $(last_line "$TMP/client.$i")"; done
	wait "${servers[@]}"
	PORT=$((PORT + 8))
}

# One that the daemon takes for anonymous.
no_certificate_is_refused() {
	CREDENTIALS=x509:$TMP/authority.pem until_logged 'the peer has no TLS certificate' refused peer_connects
	rping_works 4
}
peer_connects() {
	local rc=0
	serve 40 rdma_server -s "$IP4_B" -p "$PORT"
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	peer "$NS_A" connect whole || rc=$?
	kill "$SERVER_PID" 2>/dev/null || true
	return "$rc"
}

# server_is_refused NAME: end A does not connect to an end B with this certificate.
server_is_refused() {
	certify "$NS_B" "$DEV_B" "$1"
	refused rping_pair 4 2 -V
	certify "$NS_B" "$DEV_B" b
	PORT=$((PORT + 1))
	rping_works 4
}

# client_is_refused NAME: end B does not accept an end A with this certificate.
client_is_refused() {
	certify "$NS_A" "$DEV_A" "$1"
	refused rping_pair 4 2 -V
	certify "$NS_A" "$DEV_A" a
	PORT=$((PORT + 1))
	rping_works 4
}

# The certificate of B has the name that A demands, instead of the address of B.
peername_is_demanded() {
	setting "$NS_A" "$DEV_A" tls_peername other.example
	refused rping_pair 4 2 -V
	certify "$NS_B" "$DEV_B" other
	PORT=$((PORT + 1))
	rping_works 4
	setting "$NS_A" "$DEV_A" tls_peername ''
	PORT=$((PORT + 1))
	refused rping_pair 4 2 -V
	both_certified
}

# Both devices have the keys for both.
other_kind_is_refused() {
	setting "$NS_A" "$DEV_A" tls psk
	refused rping_pair 4 2 -V
	setting "$NS_A" "$DEV_A" tls x509
	setting "$NS_B" "$DEV_B" tls psk
	PORT=$((PORT + 1))
	refused rping_pair 4 2 -V
	both_certified
	PORT=$((PORT + 1))
	rping_works 4
}

# A certificate in PEM, of which the daemon can make nothing.
pem_is_refused() {
	setting "$NS_A" "$DEV_A" tls_cert "$(user_key pem "$(base64 "$TMP/a.pem")")"
	refused rping_pair 4 2 -V
	both_certified
}

# bad_end WAY REASON: a peer that goes on badly ends its own connection, for this reason.
bad_end() {
	until_logged "$2" ends_badly "$1"
	rping_works 4
}

# until_logged TEXT COMMAND...: runs a command until the log has the text, since it leaves lines out
# when there are many in a minute.
until_logged() {
	local text=$1 tries
	shift
	for ((tries = 0; tries < 60; tries++)); do
		"$@"
		PORT=$((PORT + 1))
		if dmesg | grep -q "$text"; then return; fi
		sleep 1
	done
	die "no '$text' in the log"
}

ends_badly() {
	serve 40 rdma_server -s "$IP4_B" -p "$PORT"
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	peer "$NS_A" connect "$1" || die "$(last_line "$TMP/peer")"
	# It does not look at the status of its completion.
	wait "$SERVER_PID" || true
	! grep -q 'in order' "$TMP/peer" || die 'an orderly end'
}

# KeyUpdate, by the command K of openssl's client, ends the stream, whose Request was answered.
key_update_ends_the_stream() {
	until_logged 'keys of TLS have to be changed' update_keys
	rping_works 4
}

update_keys() {
	local secret
	secret=$(printf %s "$SECRET" | od -An -tx1 -v | tr -d ' \n')
	serve 40 rdma_server -s "$IP4_B" -p "$PORT"
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	{
		printf 'MPA ID Req Frame\0\1\0\0'
		eventually 20 grep -q -a 'MPA ID Rep Frame' "$TMP/openssl"
		echo K
		eventually 20 gone "$SERVER_PID" || true
	} | in_ns "$NS_A" within 40 openssl s_client -tls1_3 -connect "$IP4_B:$PORT" \
		-ciphersuites TLS_AES_128_GCM_SHA256 -psk_identity 'riwarp host' -psk "$secret" \
		>"$TMP/openssl" 2>&1 || true
}

# Peers that stop inside the handshake leave others their place.
stalled_handshakes_do_not_stop_others() {
	local i pids=()
	serve 60 rping -s -a "$IP4_B" -p "$PORT" -C 5 -V -S 1000
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	for i in {1..12}; do
		start "$NS_A" "$TMP/stall.$i" python3 "$GUEST_DIR/tls_peer.py" connect "$IP4_B" "$PORT" '' stall
		pids+=("$STARTED")
	done
	for i in {1..12}; do eventually 30 grep -q stalled "$TMP/stall.$i" || die 'it does not connect'; done
	took in_ns "$NS_A" within 30 rping -c -a "$IP4_B" -p "$PORT" -C 5 -V -S 1000
	wait "$SERVER_PID" || die "server: $(last_line "$SERVER_OUT")"
	echo "it took $TOOK ms"
	# The listener has gone, and with it the others.
	for i in {1..12}; do eventually 30 grep -q closed "$TMP/stall.$i" || die 'one stays'; done
	wait "${pids[@]}"
}

# Ten thousand peers of one address that stop inside their handshakes: one of another address
# connects meanwhile, and nothing stays of them.
flood_of_handshakes() {
	local flood other=${IP4_A%.*}.77
	address_add "$NS_A" "$NET_A" "$other/24"
	serve 100 rping -s -a "$IP4_B" -p "$PORT" -C 5 -V -S 1000
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	start "$NS_A" "$TMP/flood" python3 "$GUEST_DIR/tls_peer.py" connect "$IP4_B" "$PORT" "$other" flood
	flood=$STARTED
	eventually 60 grep -q begun "$TMP/flood" || die "$(last_line "$TMP/flood")"
	took in_ns "$NS_A" within 60 rping -c -a "$IP4_B" -p "$PORT" -C 5 -V -S 1000
	! grep -q stalled "$TMP/flood" || die 'the flood was over before'
	wait "$SERVER_PID" || die "server: $(last_line "$SERVER_OUT")"
	echo "it took $TOOK ms"
	eventually 100 grep -q closed "$TMP/flood" || die "one stays: $(last_line "$TMP/flood")"
	wait "$flood"
	cat "$TMP/flood"
}

# client_begins: starts a server, SERVER_PID, and a client that connects to it, STARTED.
client_begins() {
	serve 60 rping -s -a "$IP4_B" -p "$PORT" -C 2 -V
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	start "$NS_A" "$TMP/client" within 40 rping -c -a "$IP4_B" -p "$PORT" -C 2 -V
}

device_ends_soon() {
	took link_del "$NS_A" "$DEV_A"
	[ "$TOOK" -lt $((5000 * SLOW)) ] || die "the end of the device took $TOOK ms"
}

# device_again: makes the device of end A again, which connects.
device_again() {
	link_add "$NS_A" "$DEV_A" "$TYPE" "$NET_A"
	secure "$NS_A" "$DEV_A" "$RING_A" "$KEY_A"
	PORT=$((PORT + 1))
	rping_works 4
}

# A daemon that does not answer delays only those that wait for it: not the end of a device.
stopped_daemon_holds_nothing_up() {
	local children
	kill -STOP "$DAEMON_A"
	client_begins
	eventually 20 grep -q "device=$DEV_A .*phase=securing" /sys/kernel/debug/riwarp/conns || die 'it does not wait'
	device_ends_soon
	kill "$SERVER_PID"
	kill -CONT "$DAEMON_A"
	device_again
	# The same with the process that has the socket: it waits for the peer's daemon.
	kill -STOP "$DAEMON_B"
	PORT=$((PORT + 1))
	client_begins
	eventually 20 has_child "$DAEMON_A" || die 'no handshake'
	children=$(pgrep -P "$DAEMON_A")
	kill -STOP $children
	device_ends_soon
	kill -CONT $children
	kill "$SERVER_PID"
	kill -CONT "$DAEMON_B"
	eventually 20 has_no_child "$DAEMON_A" || die 'the handshake does not end'
	device_again
}
has_child() { pgrep -P "$1"; }
has_no_child() { ! pgrep -P "$1"; }

unloads_beside_a_stopped_daemon() {
	kill -STOP "$DAEMON_B"
	# It is not a child of this shell.
	TLSHD=()
	unloads
	kill -KILL "$DAEMON_B"
	kill "$DAEMON_A" 2>/dev/null || true
}

# A daemon that is killed inside a handshake: the connection fails by its time limit.
killed_daemon_ends_in_time() {
	local child
	kill -STOP "$DAEMON_B"
	client_begins
	child=$STARTED
	eventually 20 has_child "$DAEMON_A" || die 'no handshake'
	kill -KILL "$(pgrep -P "$DAEMON_A")"
	! wait "$child" || die 'it connects'
	grep -q -E 'UNREACHABLE|CONNECT_ERROR' "$TMP/client" || die "$(last_line "$TMP/client")"
	kill "$SERVER_PID"
	kill -CONT "$DAEMON_B"
	PORT=$((PORT + 1))
	rping_works 4
}

without_daemon_it_fails_at_once() {
	kill "$DAEMON_A"
	eventually 10 not_listens "$NS_A"
	until_logged 'no tlshd listens' fails_at_once
}
fails_at_once() {
	serve 30 rping -s -a "$IP4_B" -p "$PORT" -C 2 -V
	STARTED=$SERVER_PID
	wait_listen "$PORT"
	took try_client
	kill "$SERVER_PID"
	grep -q 'CONNECT_ERROR' "$TMP/client" || die "$(last_line "$TMP/client")"
	[ "$TOOK" -lt $((2000 * SLOW)) ] || die "it took $TOOK ms"
}
not_listens() { ! handshakes_have_a_daemon "$1"; }
try_client() {
	in_ns "$NS_A" within 20 rping -c -a "$IP4_B" -p "$PORT" -C 2 -V >"$TMP/client" 2>&1 && die 'it connects'
	true
}

# OpenSSL takes a key without a hash for one of SHA-256, and offers other ciphers nevertheless.
cat >"$TMP/openssl.cnf" <<-'END'
	openssl_conf = init
	[init]
	ssl_conf = modules
	[modules]
	system_default = tls
	[tls]
	Ciphersuites = TLS_AES_128_GCM_SHA256
END
modprobe -q nvme_keyring || true
if ! grep -q . /sys/module/nvme_keyring/refcnt 2>/dev/null || ! command -v tlshd >/dev/null; then
	skip tls/all 'no tlshd, or no keys of its type'
	finish
fi
ends_up netns
RING_A=$(ring riwarp-a) RING_B=$(ring riwarp-b) RING_C=$(ring riwarp-c) RING_D=$(ring riwarp-d)
KEY_A=$(psk "$RING_A" 'riwarp host' "$SECRET")
KEY_B=$(psk "$RING_B" 'riwarp host' "$SECRET")
# At B in a keyring that the daemon knows and the device does not.
KEY_FOREIGN_A=$(psk "$RING_C" 'NVMe0R01 foreign' 'a foreign secret of 32 octets...')
psk "$RING_D" 'NVMe0R01 foreign' 'a foreign secret of 32 octets...' >"$TMP/foreign"
# reverse_name ADDRESS: prints the name that the certificate of an IPv6 address has.
reverse_name() { python3 -c 'import ipaddress, sys; print(ipaddress.ip_address(sys.argv[1]).reverse_pointer)' "$1"; }
authority authority
authority stranger
certificate a authority "IP:$IP4_A,DNS:$(reverse_name "$IP6_A")"
certificate b authority "IP:$IP4_B,DNS:$(reverse_name "$IP6_B")"
certificate other authority DNS:other.example,IP:192.0.2.1
certificate expired authority "IP:$IP4_A,IP:$IP4_B" -not_before 20200101000000Z -not_after 20200201000000Z
certificate foreign stranger "IP:$IP4_A,IP:$IP4_B"

try settings_want_keys 10 settings_want_keys
try certificates_want_keys 10 certificates_want_keys
try steps_of_the_page 60 page_works 'Steps, with a key that both hosts have' 4 3 psk psk
try steps_of_the_page_with_certificates 60 page_works 'Steps, with certificates' 9 4 host.key x509
try steps_of_the_page_by_hand 60 page_by_hand_works
try files_make_keys 120 files_make_keys
tlshd_start "$NS_A" 'riwarp-a;riwarp-c' authority
DAEMON_A=${TLSHD[$NS_A]}
tlshd_start "$NS_B" 'riwarp-b;riwarp-d' authority
DAEMON_B=${TLSHD[$NS_B]}
both_on
try rping_over_ipv4 60 rping_works 4
try rping_over_ipv6 60 rping_works 6
try streams_have_a_cipher 60 streams_have_a_cipher
try stream_does_not_hold_its_namespace 90 stream_does_not_hold_its_namespace
try streams_end_in_order 60 streams_end_in_order
try closes_over_a_slow_link 60 closes_over_a_slow_link
try perftest 120 perftest_works
try without_rdma_cm 60 oob_works
try nothing_is_in_the_clear 90 nothing_is_in_the_clear both_on
try other_secret_is_refused 60 other_secret_is_refused
try unknown_identity_is_refused 60 unknown_identity_is_refused
try foreign_key_is_refused 150 foreign_key_is_refused
try clear_text_is_refused 150 clear_text_is_refused
try off_does_not_take_tls 60 off_does_not_take_tls
try independent_peer_connects 60 independent_peer_connects whole
try independent_peer_sends_single_octets 60 independent_peer_connects split
try independent_peer_accepts 60 independent_peer_accepts whole
try independent_peer_answers_by_single_octets 60 independent_peer_accepts split
both_certified
try certified_rping_over_ipv4 60 rping_works 4
try certified_rping_over_ipv6 60 rping_works 6
try certificates_are_shown 60 certificates_are_shown
try certified_perftest 120 perftest_works
try certified_without_rdma_cm 60 oob_works
try many_connect_at_once 90 many_connect_at_once
try nothing_is_in_the_clear_with_certificates 90 nothing_is_in_the_clear both_certified
try no_certificate_is_refused 150 no_certificate_is_refused
try certificate_of_another_host_is_refused 60 server_is_refused other
try expired_server_is_refused 60 server_is_refused expired
try expired_client_is_refused 60 client_is_refused expired
try foreign_server_is_refused 60 server_is_refused foreign
try foreign_client_is_refused 60 client_is_refused foreign
try peername_is_demanded 60 peername_is_demanded
try other_kind_is_refused 60 other_kind_is_refused
try pem_is_refused 60 pem_is_refused
try certified_peer_connects 60 with_certificate a independent_peer_connects whole
try certified_peer_accepts 60 with_certificate b independent_peer_accepts whole
both_on
try fin_without_alert_is_a_loss 150 bad_end cut 'closed without the closure alert'
try record_of_another_ends_the_stream 150 bad_end garbage 'a TLS record was not the peer'
for way in replay swap drop; do
	try "record_on_the_way_$way" 150 bad_end $way 'a TLS record was not the peer'
done
try key_update_ends_the_stream 150 key_update_ends_the_stream
try stalled_handshakes_do_not_stop_others 90 stalled_handshakes_do_not_stop_others
try flood_of_handshakes 200 flood_of_handshakes
try stopped_daemon_holds_nothing_up 120 stopped_daemon_holds_nothing_up
try killed_daemon_ends_in_time 90 killed_daemon_ends_in_time
try without_daemon_it_fails_at_once 150 without_daemon_it_fails_at_once
# Whatever a daemon has, the module goes.
try unloads 60 unloads_beside_a_stopped_daemon
finish
