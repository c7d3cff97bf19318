# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# TLS for the guest scripts: keyrings, keys and daemons (docs/tls.md). Sourced by lib.sh.

SECRET='the secret of 32 octets.........'
# Of each network namespace with a daemon, its process.
declare -A TLSHD=()

# ring NAME: makes a keyring and prints its number. Possessor and owner may do anything.
ring() {
	local ring
	ring=$(keyctl newring "$1" @u)
	keyctl setperm "$ring" 0x3f3f0000
	echo "$ring"
}

# psk RING IDENTITY SECRET: adds a key and prints its number.
psk() {
	local key
	key=$(printf %s "$3" | keyctl padd psk "$2" "$1")
	keyctl setperm "$key" 0x3f3f0000
	echo "$key"
}

# authority NAME: makes an authority, $TMP/NAME.pem and $TMP/NAME.key.
authority() {
	make_certificate "$1" -days 2
}

# certificate NAME AUTHORITY NAMES [OPTION...]: makes a certificate of an authority for these names,
# $TMP/NAME.pem and $TMP/NAME.key.
certificate() {
	local name=$1 authority=$TMP/$2 names=$3
	shift 3
	make_certificate "$name" -CA "$authority.pem" -CAkey "$authority.key" -extensions usr_cert \
		-addext "subjectAltName=$names" "$@"
}

make_certificate() {
	local name=$1
	shift
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" "$@" \
		-keyout "$TMP/$name.key" -out "$TMP/$name.pem" 2>/dev/null
}

# key_of_cert NAME, key_of_privkey NAME: adds the key of a certificate, and prints its number.
key_of_cert() { user_key "cert $1" "$(openssl x509 -in "$TMP/$1.pem" -outform der | base64)"; }
key_of_privkey() { user_key "privkey $1" "$(openssl pkey -in "$TMP/$1.key" -outform der | base64)"; }

# user_key DESCRIPTION BASE64: adds a key and prints its number.
user_key() {
	local key
	key=$(base64 -d <<<"$2" | keyctl padd user "$1" @u)
	keyctl setperm "$key" 0x3f3f0000
	echo "$key"
}

# tlshd_start NETNS RINGS [AUTHORITY]: starts a tlshd that knows these keyrings and trusts this
# authority, in a session of its own.
tlshd_start() {
	local log=$TMP/tlshd$1 started=${STARTED:-} trusts=''
	[ -z "${3:-}" ] || trusts="x509.truststore=$TMP/$3.pem"
	printf '%s\n' '[debug]' loglevel=1 '[authenticate]' "keyrings=$2" '[authenticate.client]' "$trusts" \
		'[authenticate.server]' "$trusts" >"$log.conf"
	start "$1" "$log" keyctl session - tlshd -s -c "$log.conf"
	TLSHD[$1]=$STARTED STARTED=$started
	eventually 10 handshakes_have_a_daemon "$1" || { echo "tlshd: $(last_line "$log")"; return 1; }
}

# handshakes_have_a_daemon NETNS: the kernel has somebody to ask for handshakes there. (Among the
# sockets of generic netlink, one is in a group.)
handshakes_have_a_daemon() { in_ns "$1" grep -q -E '^[^ ]+ +16 +[^ ]+ +0*[1-9a-f]' /proc/net/netlink; }

# tlshd_end [NETNS...]: ends the daemons, or these.
tlshd_end() {
	local where
	[ $# -gt 0 ] || set -- "${!TLSHD[@]}"
	for where; do
		kill -CONT "${TLSHD[$where]}" 2>/dev/null || true
		kill "${TLSHD[$where]}" 2>/dev/null || true
		wait "${TLSHD[$where]}" 2>/dev/null || true
		unset "TLSHD[$where]"
	done
}

# secure NETNS DEVICE RING KEY: turns TLS on.
secure() {
	setting "$1" "$2" tls_keyring "$3"
	setting "$1" "$2" tls_key "$4"
	setting "$1" "$2" tls psk
}

# certify NETNS DEVICE NAME: turns TLS with this certificate on.
certify() {
	setting "$1" "$2" tls_cert "$(key_of_cert "$3")"
	setting "$1" "$2" tls_privkey "$(key_of_privkey "$3")"
	setting "$1" "$2" tls x509
}

# secure_link NETNS DEVICE: turns TLS on as the variable TLS says, with a key or a certificate that
# all have, and demands it of peers.
secure_link() {
	case $TLS in
	psk)
		modprobe -q nvme_keyring || true
		[ -n "${SECURE_RING:-}" ] || SECURE_RING=$(ring riwarp-tests)
		[ -n "${SECURE_KEY:-}" ] || SECURE_KEY=$(psk "$SECURE_RING" 'riwarp tests' "$SECRET")
		[ -n "${TLSHD[$1]:-}" ] || tlshd_start "$1" riwarp-tests || return 1
		secure "$1" "$2" "$SECURE_RING" "$SECURE_KEY"
		;;
	x509)
		[ -e "$TMP/tests.pem" ] || authority tests
		[ -e "$TMP/host.pem" ] || certificate host tests DNS:riwarp-tests
		[ -n "${TLSHD[$1]:-}" ] || tlshd_start "$1" riwarp-tests tests || return 1
		certify "$1" "$2" host
		setting "$1" "$2" tls_peername riwarp-tests
		;;
	*)
		echo "TLS=$TLS: neither psk nor x509"
		return 1
		;;
	esac
	setting "$1" "$2" tls_accept require
}
