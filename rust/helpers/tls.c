// SPDX-License-Identifier: GPL-2.0
/* Helpers of rust/net/key.rs, rust/net/socket/tls.rs and rust/net/handshake.rs. */
#include <linux/errno.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/key-type.h>
#include <linux/key.h>
#include <linux/kmod.h>
#include <linux/net.h>
#include <linux/string.h>
#include <linux/unaligned.h>
#include <keys/asymmetric-type.h>
#include <net/handshake.h>
#include <net/net_namespace.h>
#include <net/sock.h>
#include <net/tcp.h>
#include <net/tls.h>
#include <net/tls_prot.h>

#define RIWARP_HAS_TLS \
	(IS_ENABLED(CONFIG_TLS) && IS_ENABLED(CONFIG_NET_HANDSHAKE) && IS_ENABLED(CONFIG_KEYS))

bool riwarp_helper_tls_exists(void);
bool riwarp_helper_tls_exists(void)
{
	return RIWARP_HAS_TLS;
}

/* Loads the parser if it is a module: nothing else does. */
bool riwarp_helper_tls_has_x509(void);
bool riwarp_helper_tls_has_x509(void)
{
	if (!RIWARP_HAS_TLS || !IS_ENABLED(CONFIG_X509_CERTIFICATE_PARSER))
		return false;
	return !IS_MODULE(CONFIG_X509_CERTIFICATE_PARSER) || !request_module("x509_key_parser");
}

/* Keys. */

/* Returns a reference to the key, or an error, if the current task may search for it. */
struct key *riwarp_helper_key_get(s32 serial, const char *type);
struct key *riwarp_helper_key_get(s32 serial, const char *type)
{
#if RIWARP_HAS_TLS
	key_ref_t ref = lookup_user_key(serial, 0, KEY_NEED_SEARCH);
	struct key *key;

	if (IS_ERR(ref))
		return ERR_CAST(ref);
	key = key_ref_to_ptr(ref);
	if (strcmp(key->type->name, type) == 0)
		return key;
	key_put(key);
	return ERR_PTR(-EINVAL);
#else
	return ERR_PTR(-EOPNOTSUPP);
#endif
}

/* Returns a reference to the key, or an error, whoever may search for it. */
struct key *riwarp_helper_key_lookup(s32 serial, const char *type);
struct key *riwarp_helper_key_lookup(s32 serial, const char *type)
{
#if RIWARP_HAS_TLS
	struct key *key = key_lookup(serial);

	if (IS_ERR(key) || strcmp(key->type->name, type) == 0)
		return key;
	key_put(key);
	return ERR_PTR(-EINVAL);
#else
	return ERR_PTR(-EOPNOTSUPP);
#endif
}

/*
 * Returns the octets of the subject key identifier of a key of the type "asymmetric", and how many
 * they are: 0 if it has none.
 */
const u8 *riwarp_helper_key_skid(const struct key *key, size_t *len);
const u8 *riwarp_helper_key_skid(const struct key *key, size_t *len)
{
	const struct asymmetric_key_ids *ids = asymmetric_key_ids(key);
	const struct asymmetric_key_id *skid = ids ? ids->id[1] : NULL;

	*len = skid ? skid->len : 0;
	return skid ? skid->data : NULL;
}

void riwarp_helper_key_put(struct key *key);
void riwarp_helper_key_put(struct key *key)
{
	key_put(key);
}

s32 riwarp_helper_key_serial(const struct key *key);
s32 riwarp_helper_key_serial(const struct key *key)
{
	return key_serial(key);
}

/* Returns whether the keyring itself has the key, which is neither revoked nor expired. */
bool riwarp_helper_keyring_has(struct key *ring, s32 serial);
bool riwarp_helper_keyring_has(struct key *ring, s32 serial)
{
#if RIWARP_HAS_TLS
	struct key *key = key_lookup(serial);
	bool has = false;
	key_ref_t ref;

	if (IS_ERR(key))
		return false;
	ref = keyring_search(make_key_ref(ring, true), key->type, key->description, false);
	if (!IS_ERR(ref)) {
		has = key_ref_to_ptr(ref) == key;
		key_ref_put(ref);
	}
	key_put(key);
	return has;
#else
	return false;
#endif
}

/* The socket's file. */

/* The file keeps a copy of the name. On failure the socket is released. */
int riwarp_helper_sock_alloc_file(struct socket *sock, const char *name);
int riwarp_helper_sock_alloc_file(struct socket *sock, const char *name)
{
	return PTR_ERR_OR_ZERO(sock_alloc_file(sock, O_NONBLOCK, name));
}

void riwarp_helper_sock_fput(struct socket *sock);
void riwarp_helper_sock_fput(struct socket *sock)
{
	__fput_sync(sock->file);
}

bool riwarp_helper_sock_has_other_users(const struct socket *sock);
bool riwarp_helper_sock_has_other_users(const struct socket *sock)
{
	return file_count(sock->file) > 1;
}

/* Undoes sk_net_refcnt_upgrade(). The caller owns the socket. */
void riwarp_helper_sk_net_refcnt_downgrade(struct sock *sk);
void riwarp_helper_sk_net_refcnt_downgrade(struct sock *sk)
{
	struct net *net = sock_net(sk);

	sock_inuse_add(net, -1);
	sk->sk_net_refcnt = 0;
	net_passive_inc(net);
	put_net_track(net, &sk->ns_tracker);
	__netns_tracker_alloc(net, &sk->ns_tracker, false, GFP_NOIO);
}

/*
 * The handshake. The name of the peer is that of the file, which exists as long as anybody reads it:
 * a request that was cancelled keeps a pointer to it. (Without one, tlshd looks the address up by
 * DNS.)
 */

/* `own` are a keyring and a key, or the keys of a certificate and of its private key. */
int riwarp_helper_tls_hello(struct socket *sock, bool client, bool x509, unsigned int timeout_ms,
		const s32 own[2], void (*done)(void *data, int status, s32 peerid), void *data);
int riwarp_helper_tls_hello(struct socket *sock, bool client, bool x509, unsigned int timeout_ms,
		const s32 own[2], void (*done)(void *data, int status, s32 peerid), void *data)
{
#if RIWARP_HAS_TLS
	struct tls_handshake_args args = {
		.ta_sock = sock,
		.ta_done = done,
		.ta_data = data,
		.ta_peername = sock->file->f_path.dentry->d_name.name,
		.ta_timeout_ms = timeout_ms,
	};

	if (x509) {
		args.ta_my_cert = own[0];
		args.ta_my_privkey = own[1];
		return client ? tls_client_hello_x509(&args, GFP_NOIO) :
				tls_server_hello_x509(&args, GFP_NOIO);
	}
	args.ta_keyring = own[0];
	args.ta_num_peerids = 1;
	args.ta_my_peerids[0] = own[1];
	return client ? tls_client_hello_psk(&args, GFP_NOIO) :
			tls_server_hello_psk(&args, GFP_NOIO);
#else
	return -EOPNOTSUPP;
#endif
}

bool riwarp_helper_tls_cancel(struct sock *sk);
bool riwarp_helper_tls_cancel(struct sock *sk)
{
#if RIWARP_HAS_TLS
	return tls_handshake_cancel(sk);
#else
	return false;
#endif
}

/* Records. */

/*
 * Returns the number of the cipher (TLS_CIPHER_*) if the kernel's TLS 1.3 encrypts and decrypts all
 * that goes through the socket, else an error.
 */
int riwarp_helper_tls_cipher(const struct sock *sk);
int riwarp_helper_tls_cipher(const struct sock *sk)
{
	const struct tcp_ulp_ops *ulp = READ_ONCE(inet_csk(sk)->icsk_ulp_ops);
	const struct tls_context *ctx = tls_get_ctx(sk);

	if (!ulp || strcmp(ulp->name, "tls") || !ctx)
		return -ENOTCONN;
	if (ctx->tx_conf == TLS_BASE || ctx->rx_conf == TLS_BASE)
		return -ENOTCONN;
	if (ctx->tx_conf != TLS_SW || ctx->rx_conf != TLS_SW)
		return -EOPNOTSUPP;
	if (ctx->prot_info.version != TLS_1_3_VERSION)
		return -EPROTO;
	return ctx->prot_info.cipher_type;
}

/* Returns how many records were sent under the key. */
u64 riwarp_helper_tls_records_sent(const struct sock *sk);
u64 riwarp_helper_tls_records_sent(const struct sock *sk)
{
	return get_unaligned_be64(tls_get_ctx(sk)->tx.rec_seq);
}

/* Returns whether TCP has all records that were sent. The caller owns the socket. */
bool riwarp_helper_tls_is_flushed(const struct sock *sk);
bool riwarp_helper_tls_is_flushed(const struct sock *sk)
{
	const struct tls_context *ctx = tls_get_ctx(sk);

	return !ctx->partially_sent_record && list_empty(&tls_sw_ctx_tx(ctx)->tx_list);
}

/* For a sender that has found no memory: TCP calls sk_write_space once it has room. */
void riwarp_helper_sk_set_nospace(struct sock *sk);
void riwarp_helper_sk_set_nospace(struct sock *sk)
{
	set_bit(SOCK_NOSPACE, &sk->sk_socket->flags);
}

/* Only process context uses a socket with TLS, so allocations may sleep. */
void riwarp_helper_tls_setup(struct sock *sk);
void riwarp_helper_tls_setup(struct sock *sk)
{
	sk->sk_allocation = GFP_NOIO;
}

/* Makes closing the socket reset the connection, or not. The caller owns the socket. */
void riwarp_helper_sk_set_linger(struct sock *sk, bool reset);
void riwarp_helper_sk_set_linger(struct sock *sk, bool reset)
{
	WRITE_ONCE(sk->sk_lingertime, 0);
	sock_valbool_flag(sk, SOCK_LINGER, reset);
}

int riwarp_helper_tls_send(struct socket *sock, const void *buf, size_t len, u8 type);
int riwarp_helper_tls_send(struct socket *sock, const void *buf, size_t len, u8 type)
{
	u8 control[CMSG_SPACE(sizeof(type))] __aligned(sizeof(long)) = {};
	struct msghdr msg = { .msg_flags = MSG_DONTWAIT | MSG_NOSIGNAL };
	struct kvec vec = { (void *)buf, len };
	struct cmsghdr *cmsg;

	if (type != TLS_RECORD_TYPE_DATA) {
		msg.msg_control = control;
		msg.msg_controllen = sizeof(control);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_TLS;
		cmsg->cmsg_type = TLS_SET_RECORD_TYPE;
		cmsg->cmsg_len = CMSG_LEN(sizeof(type));
		*(u8 *)CMSG_DATA(cmsg) = type;
	}
	return kernel_sendmsg(sock, &msg, &vec, 1, len);
}

/* Receives octets of records of one type. Returns 0, without a type, at the end of the stream. */
int riwarp_helper_tls_recv(struct socket *sock, void *buf, size_t len, u8 *type);
int riwarp_helper_tls_recv(struct socket *sock, void *buf, size_t len, u8 *type)
{
	u8 control[CMSG_SPACE(sizeof(*type))] __aligned(sizeof(long)) = {};
	struct msghdr msg = { .msg_control = control, .msg_controllen = sizeof(control) };
	const struct cmsghdr *cmsg = (const struct cmsghdr *)control;
	struct kvec vec = { buf, len };
	int ret = kernel_recvmsg(sock, &msg, &vec, 1, len, MSG_DONTWAIT);

	*type = 0;
	if (ret >= 0 && cmsg->cmsg_level == SOL_TLS && cmsg->cmsg_type == TLS_GET_RECORD_TYPE)
		*type = *(const u8 *)CMSG_DATA(cmsg);
	return ret;
}

/* Resets the connection. Unless it may wait, without effect and -EBUSY while the socket is owned. */
int riwarp_helper_tls_abort(struct sock *sk, int err, bool wait);
int riwarp_helper_tls_abort(struct sock *sk, int err, bool wait)
{
	if (!wait && sock_owned_by_user_nocheck(sk))
		return -EBUSY;
	/* Its own error is that the connection has ended. */
	tcp_abort(sk, err);
	return 0;
}
