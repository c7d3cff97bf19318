// SPDX-License-Identifier: GPL-2.0
/* Helpers of rust/net.rs and rust/net/. */
#include <linux/cred.h>
#include <linux/inetdevice.h>
#include <linux/mm.h>
#include <linux/netdevice.h>
#include <linux/nsproxy.h>
#include <linux/rculist.h>
#include <linux/sched.h>
#include <linux/skbuff.h>
#include <net/addrconf.h>
#include <net/if_inet6.h>
#include <net/inet_sock.h>
#include <net/ip.h>
#include <net/ipv6.h>
#include <net/net_namespace.h>
#include <net/sock.h>
#include <net/tcp.h>

/* Network devices and namespaces. */

struct net *riwarp_helper_current_net(void);
struct net *riwarp_helper_current_net(void)
{
	return current->nsproxy ? current->nsproxy->net_ns : &init_net;
}

const unsigned char *riwarp_helper_dev_addr(const struct net_device *dev);
const unsigned char *riwarp_helper_dev_addr(const struct net_device *dev)
{
	return dev->dev_addr;
}

unsigned int riwarp_helper_dev_addr_len(const struct net_device *dev);
unsigned int riwarp_helper_dev_addr_len(const struct net_device *dev)
{
	return dev->addr_len;
}

struct net *riwarp_helper_dev_get_net(const struct net_device *dev);
struct net *riwarp_helper_dev_get_net(const struct net_device *dev)
{
	guard(rcu)();
	return maybe_get_net(dev_net_rcu(dev));
}

struct net_device *riwarp_helper_dev_get_by_name(const char *name);
struct net_device *riwarp_helper_dev_get_by_name(const char *name)
{
	return dev_get_by_name(current->nsproxy->net_ns, name);
}

void riwarp_helper_dev_hold(struct net_device *dev);
void riwarp_helper_dev_hold(struct net_device *dev)
{
	dev_hold(dev);
}

int riwarp_helper_dev_ifindex(const struct net_device *dev);
int riwarp_helper_dev_ifindex(const struct net_device *dev)
{
	/* Changes when the device moves to another namespace; the old or the new one is right. */
	return READ_ONCE(dev->ifindex);
}

unsigned int riwarp_helper_dev_mtu(const struct net_device *dev);
unsigned int riwarp_helper_dev_mtu(const struct net_device *dev)
{
	/* Changes under rtnl; the old or the new one is right. */
	return READ_ONCE(dev->mtu);
}

const char *riwarp_helper_dev_name(const struct net_device *dev);
const char *riwarp_helper_dev_name(const struct net_device *dev)
{
	return dev->name;
}

struct net *riwarp_helper_dev_net(const struct net_device *dev);
struct net *riwarp_helper_dev_net(const struct net_device *dev)
{
	return read_pnet(&dev->nd_net);
}

void riwarp_helper_dev_put(struct net_device *dev);
void riwarp_helper_dev_put(struct net_device *dev)
{
	dev_put(dev);
}

bool riwarp_helper_dev_running(const struct net_device *dev);
bool riwarp_helper_dev_running(const struct net_device *dev)
{
	return netif_running(dev) && netif_carrier_ok(dev);
}

unsigned short riwarp_helper_dev_type(const struct net_device *dev);
unsigned short riwarp_helper_dev_type(const struct net_device *dev)
{
	return dev->type;
}

void riwarp_helper_for_each_in6_addr(const struct net_device *dev,
				    void (*f)(void *arg, const struct in6_addr *addr), void *arg);
void riwarp_helper_for_each_in6_addr(const struct net_device *dev,
				    void (*f)(void *arg, const struct in6_addr *addr), void *arg)
{
	const struct inet6_ifaddr *ifa;
	struct inet6_dev *idev;

	guard(rcu)();
	idev = __in6_dev_get(dev);
	if (!idev)
		return;
	read_lock_bh(&idev->lock);
	list_for_each_entry(ifa, &idev->addr_list, if_list)
		if (!(ifa->flags & IFA_F_DADFAILED))
			f(arg, &ifa->addr);
	read_unlock_bh(&idev->lock);
}

void riwarp_helper_for_each_in_addr(const struct net_device *dev,
				    void (*f)(void *arg, __be32 addr), void *arg);
void riwarp_helper_for_each_in_addr(const struct net_device *dev,
				    void (*f)(void *arg, __be32 addr), void *arg)
{
	const struct in_ifaddr *ifa;
	struct in_device *idev;

	guard(rcu)();
	idev = __in_dev_get_rcu(dev);
	if (!idev)
		return;
	in_dev_for_each_ifa_rcu(ifa, idev)
		f(arg, ifa->ifa_local);
}

struct net_device *riwarp_helper_in6_ifaddr_dev(const struct inet6_ifaddr *ifa);
struct net_device *riwarp_helper_in6_ifaddr_dev(const struct inet6_ifaddr *ifa)
{
	return ifa->idev->dev;
}

const struct in6_addr *riwarp_helper_in6_ifaddr_addr(const struct inet6_ifaddr *ifa);
const struct in6_addr *riwarp_helper_in6_ifaddr_addr(const struct inet6_ifaddr *ifa)
{
	return &ifa->addr;
}

struct net_device *riwarp_helper_in_ifaddr_dev(const struct in_ifaddr *ifa);
struct net_device *riwarp_helper_in_ifaddr_dev(const struct in_ifaddr *ifa)
{
	return ifa->ifa_dev->dev;
}

__be32 riwarp_helper_in_ifaddr_local(const struct in_ifaddr *ifa);
__be32 riwarp_helper_in_ifaddr_local(const struct in_ifaddr *ifa)
{
	return ifa->ifa_local;
}

struct net *riwarp_helper_get_net(struct net *net);
struct net *riwarp_helper_get_net(struct net *net)
{
	return get_net(net);
}

struct net *riwarp_helper_init_net(void);
struct net *riwarp_helper_init_net(void)
{
	return &init_net;
}

struct net *riwarp_helper_maybe_get_net(struct net *net);
struct net *riwarp_helper_maybe_get_net(struct net *net)
{
	return maybe_get_net(net);
}

struct net_device *riwarp_helper_notifier_dev(void *info);
struct net_device *riwarp_helper_notifier_dev(void *info)
{
	return netdev_notifier_info_to_dev(info);
}

void riwarp_helper_put_net(struct net *net);
void riwarp_helper_put_net(struct net *net)
{
	put_net(net);
}

/* Sockets. */

/* Binds with the kernel's rights, not those of the current task. */
int riwarp_helper_bind_privileged(struct socket *sock, void *addr, int len);
int riwarp_helper_bind_privileged(struct socket *sock, void *addr, int len)
{
	CLASS(override_creds, old)(kernel_cred());
	return kernel_bind(sock, addr, len);
}

void riwarp_helper_bh_lock_sock(struct sock *sk);
void riwarp_helper_bh_lock_sock(struct sock *sk)
{
	bh_lock_sock(sk);
}

void riwarp_helper_bh_unlock_sock(struct sock *sk);
void riwarp_helper_bh_unlock_sock(struct sock *sk)
{
	bh_unlock_sock(sk);
}

void riwarp_helper_lock_sock(struct sock *sk);
void riwarp_helper_lock_sock(struct sock *sk)
{
	lock_sock(sk);
}

/* Becomes the owner unless there is one; lock_sock() waits for it. */
bool riwarp_helper_try_lock_sock(struct sock *sk);
bool riwarp_helper_try_lock_sock(struct sock *sk)
{
	bool locked;

	spin_lock_bh(&sk->sk_lock.slock);
	locked = !sk->sk_lock.owned;
	if (locked) {
		sk->sk_lock.owned = 1;
		mutex_acquire(&sk->sk_lock.dep_map, 0, 1, _RET_IP_);
	}
	spin_unlock_bh(&sk->sk_lock.slock);
	return locked;
}

/*
 * Resets the connection, as tcp_abort() does, which takes the lock itself. The caller owns the
 * socket, whose last use this is but for closing it.
 */
void riwarp_helper_sk_abort(struct sock *sk, int err);
void riwarp_helper_sk_abort(struct sock *sk, int err)
{
	if (sk->sk_state == TCP_CLOSE)
		return;
	sk->sk_prot->disconnect(sk, O_NONBLOCK);
	WRITE_ONCE(sk->sk_err, err);
	sk->sk_state_change(sk);
}

/* What inet_shutdown() does, which takes the lock itself. The caller owns the socket. */
void riwarp_helper_sk_shutdown_write(struct sock *sk);
void riwarp_helper_sk_shutdown_write(struct sock *sk)
{
	if (sk->sk_state == TCP_LISTEN || sk->sk_state == TCP_SYN_SENT)
		return;
	WRITE_ONCE(sk->sk_shutdown, sk->sk_shutdown | SEND_SHUTDOWN);
	sk->sk_prot->shutdown(sk, SEND_SHUTDOWN);
	sk->sk_state_change(sk);
}

void riwarp_helper_sk_set_v6only(struct sock *sk, bool only);
void riwarp_helper_sk_set_v6only(struct sock *sk, bool only)
{
	sk->sk_ipv6only = only;
}

bool riwarp_helper_sk_has_port(const struct sock *sk);
bool riwarp_helper_sk_has_port(const struct sock *sk)
{
	return inet_sk(sk)->inet_num;
}

void riwarp_helper_sk_bind_without_port(struct sock *sk);
void riwarp_helper_sk_bind_without_port(struct sock *sk)
{
	inet_set_bit(BIND_ADDRESS_NO_PORT, sk);
}

void riwarp_helper_ip6_sock_set_tclass(struct sock *sk, int val);
void riwarp_helper_ip6_sock_set_tclass(struct sock *sk, int val)
{
	/* TCP reads it without the lock, under which this is written. */
	WRITE_ONCE(inet6_sk(sk)->tclass, val);
}

void riwarp_helper_sk_callback_read_lock(struct sock *sk);
void riwarp_helper_sk_callback_read_lock(struct sock *sk)
{
	read_lock_bh(&sk->sk_callback_lock);
}

/* Returns false, with bottom halves as they were, where a writer holds the lock or waits for it. */
bool riwarp_helper_sk_callback_read_trylock(struct sock *sk);
bool riwarp_helper_sk_callback_read_trylock(struct sock *sk)
{
	local_bh_disable();
	if (read_trylock(&sk->sk_callback_lock))
		return true;
	local_bh_enable();
	return false;
}

void riwarp_helper_sk_callback_read_unlock(struct sock *sk);
void riwarp_helper_sk_callback_read_unlock(struct sock *sk)
{
	read_unlock_bh(&sk->sk_callback_lock);
}

/* For a caller that has bottom halves off already. */
void riwarp_helper_sk_callback_read_lock_off(struct sock *sk);
void riwarp_helper_sk_callback_read_lock_off(struct sock *sk)
{
	read_lock(&sk->sk_callback_lock);
}

void riwarp_helper_sk_callback_read_unlock_off(struct sock *sk);
void riwarp_helper_sk_callback_read_unlock_off(struct sock *sk)
{
	read_unlock(&sk->sk_callback_lock);
}

void riwarp_helper_sk_callback_write_lock(struct sock *sk);
void riwarp_helper_sk_callback_write_lock(struct sock *sk)
{
	write_lock_bh(&sk->sk_callback_lock);
}

void riwarp_helper_sk_callback_write_unlock(struct sock *sk);
void riwarp_helper_sk_callback_write_unlock(struct sock *sk)
{
	write_unlock_bh(&sk->sk_callback_lock);
}

void riwarp_helper_sk_clear_nospace(struct sock *sk);
void riwarp_helper_sk_clear_nospace(struct sock *sk)
{
	clear_bit(SOCK_NOSPACE, &sk->sk_socket->flags);
}

bool riwarp_helper_sk_owned_by_user(const struct sock *sk);
bool riwarp_helper_sk_owned_by_user(const struct sock *sk)
{
	return sock_owned_by_user_nocheck(sk);
}

/* Returns the memory that TCP has reserved for the socket. The caller holds its lock. */
int riwarp_helper_sk_held(const struct sock *sk);
int riwarp_helper_sk_held(const struct sock *sk)
{
	return sk->sk_forward_alloc + atomic_read(&sk->sk_rmem_alloc) + sk->sk_wmem_queued;
}

struct mem_cgroup *riwarp_helper_sk_memcg(const struct sock *sk);
struct mem_cgroup *riwarp_helper_sk_memcg(const struct sock *sk)
{
	return mem_cgroup_from_sk(sk);
}

struct net *riwarp_helper_sk_net(const struct sock *sk);
struct net *riwarp_helper_sk_net(const struct sock *sk)
{
	return sock_net(sk);
}

int riwarp_helper_sk_net_refcnt(const struct sock *sk);
int riwarp_helper_sk_net_refcnt(const struct sock *sk)
{
	return sk->sk_net_refcnt;
}

bool riwarp_helper_sk_port_is_local(const struct sock *sk, unsigned short port);
bool riwarp_helper_sk_port_is_local(const struct sock *sk, unsigned short port)
{
	int low, high;

	inet_get_local_port_range(sock_net(sk), &low, &high);
	return low <= port && port <= high;
}

bool riwarp_helper_sk_port_is_reserved(const struct sock *sk, unsigned short port);
bool riwarp_helper_sk_port_is_reserved(const struct sock *sk, unsigned short port)
{
	return inet_is_local_reserved_port(sock_net(sk), port);
}

bool riwarp_helper_sk_port_is_privileged(const struct sock *sk, unsigned short port);
bool riwarp_helper_sk_port_is_privileged(const struct sock *sk, unsigned short port)
{
	return inet_port_requires_bind_service(sock_net(sk), port);
}

void riwarp_helper_sk_set_memcg(struct sock *sk, struct mem_cgroup *memcg);
void riwarp_helper_sk_set_memcg(struct sock *sk, struct mem_cgroup *memcg)
{
#ifdef CONFIG_MEMCG
	sk->sk_memcg = memcg;
#endif
}

/* As SO_MAX_PACING_RATE does it, which wants the socket's lock. */
void riwarp_helper_sk_limit_rate(struct sock *sk, unsigned long rate);
void riwarp_helper_sk_limit_rate(struct sock *sk, unsigned long rate)
{
	WRITE_ONCE(sk->sk_max_pacing_rate, rate);
	cmpxchg(&sk->sk_pacing_status, SK_PACING_NONE, SK_PACING_NEEDED);
	WRITE_ONCE(sk->sk_pacing_rate, min(READ_ONCE(sk->sk_pacing_rate), rate));
}

/*
 * Until the next acknowledgment the old rate would hold, and until its octets are due what was
 * sent by it. The caller has the socket's lock.
 */
void riwarp_helper_sk_unlimit_rate(struct sock *sk);
void riwarp_helper_sk_unlimit_rate(struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);

	WRITE_ONCE(sk->sk_max_pacing_rate, ~0UL);
	WRITE_ONCE(sk->sk_pacing_rate, ~0UL);
	tp->tcp_wstamp_ns = min(tp->tcp_wstamp_ns, tp->tcp_clock_cache);
	/* With the reference that the timer has. */
	if (hrtimer_try_to_cancel(&tp->pacing_timer) > 0)
		hrtimer_start(&tp->pacing_timer, 0, HRTIMER_MODE_ABS_PINNED_SOFT);
}

void riwarp_helper_sk_set_port_range(struct sock *sk, unsigned short low, unsigned short high);
void riwarp_helper_sk_set_port_range(struct sock *sk, unsigned short low, unsigned short high)
{
	WRITE_ONCE(inet_sk(sk)->local_port_range, (u32)high << 16 | low);
}

void riwarp_helper_sk_set_reuse(struct sock *sk, int reuse);
void riwarp_helper_sk_set_reuse(struct sock *sk, int reuse)
{
	sk->sk_reuse = reuse;
}

void riwarp_helper_sk_setup(struct sock *sk, int rcvbuf);
void riwarp_helper_sk_setup(struct sock *sk, int rcvbuf)
{
	sk->sk_allocation = GFP_ATOMIC;
	sk->sk_use_task_frag = false;
	sock_set_flag(sk, SOCK_URGINLINE);
	/* TCP reads it without the lock, under which this is written. */
	WRITE_ONCE(sk->sk_rcvbuf, max(sk->sk_rcvbuf, rcvbuf));
}

bool riwarp_helper_sk_stream_is_writeable(const struct sock *sk);
bool riwarp_helper_sk_stream_is_writeable(const struct sock *sk)
{
	return __sk_stream_is_writeable(sk, 1);
}

void riwarp_helper_tcp_open_window(struct sock *sk);
void riwarp_helper_tcp_open_window(struct sock *sk)
{
	tcp_sk(sk)->rcv_ssthresh = max(tcp_sk(sk)->rcv_ssthresh, tcp_sk(sk)->window_clamp);
}

int riwarp_helper_sk_acceptq_is_half_full(const struct sock *sk);
int riwarp_helper_sk_acceptq_is_half_full(const struct sock *sk)
{
	/* TCP changes both meanwhile; this is a hint. */
	return READ_ONCE(sk->sk_ack_backlog) > READ_ONCE(sk->sk_max_ack_backlog) / 2;
}

/*
 * Twice n, because the limit includes TCP's overhead; and no limit of what is not sent yet
 * (tcp_notsent_lowat), which the last octets of a stream need not keep.
 */
void riwarp_helper_sk_make_room(struct sock *sk, size_t n);
void riwarp_helper_sk_make_room(struct sock *sk, size_t n)
{
	/* TCP reads it without the lock, under which this is written. */
	WRITE_ONCE(sk->sk_sndbuf, max(sk->sk_sndbuf, sk->sk_wmem_queued + (int)(2 * n + SZ_4K)));
	WRITE_ONCE(tcp_sk(sk)->notsent_lowat, UINT_MAX);
}

/*
 * Copies into the task's memory for that: the socket's own, 32 KiB, would stay until its end. All
 * other senders use the socket's, since they may run while their task sends something else.
 */
int riwarp_helper_sk_send_copy(struct sock *sk, const void *buf, size_t len, int flags);
int riwarp_helper_sk_send_copy(struct sock *sk, const void *buf, size_t len, int flags)
{
	struct kvec vec = { (void *)buf, len };
	struct msghdr msg = { .msg_flags = flags };
	int ret;

	iov_iter_kvec(&msg.msg_iter, ITER_SOURCE, &vec, 1, len);
	sk->sk_use_task_frag = true;
	ret = tcp_sendmsg_locked(sk, &msg, len);
	sk->sk_use_task_frag = false;
	return ret;
}

int riwarp_helper_tcp_inq(struct sock *sk);
int riwarp_helper_tcp_inq(struct sock *sk)
{
	return tcp_inq(sk);
}

bool riwarp_helper_tcp_is_refusing(const struct sock *sk);
bool riwarp_helper_tcp_is_refusing(const struct sock *sk)
{
	/* Else TCP refuses because of the socket's own limit. */
	return inet_csk(sk)->icsk_ack.pending & ICSK_ACK_NOMEM &&
	       sk_rmem_alloc_get(sk) <= READ_ONCE(sk->sk_rcvbuf);
}

void riwarp_helper_sk_set_aside(struct sock *sk);
void riwarp_helper_sk_set_aside(struct sock *sk)
{
	skb_queue_splice_tail_init(&sk->sk_receive_queue, &sk->sk_error_queue);
}

void riwarp_helper_sk_free_set_aside(struct sock *sk);
void riwarp_helper_sk_free_set_aside(struct sock *sk)
{
	__skb_queue_purge_reason(&sk->sk_error_queue, SKB_CONSUMED);
}

/* Socket buffers and pages. */

struct page *riwarp_helper_alloc_pages(bool sleep, unsigned int order);
struct page *riwarp_helper_alloc_pages(bool sleep, unsigned int order)
{
	return alloc_pages((sleep ? GFP_NOIO : GFP_ATOMIC) | __GFP_ACCOUNT | __GFP_COMP |
			   __GFP_NOWARN | __GFP_NORETRY, order);
}

int riwarp_helper_page_ref_count(const struct page *page);
int riwarp_helper_page_ref_count(const struct page *page)
{
	return page_ref_count(page);
}

void riwarp_helper_put_page(struct page *page);
void riwarp_helper_put_page(struct page *page)
{
	put_page(page);
}

void *riwarp_helper_skb_frag_address(const skb_frag_t *frag);
void *riwarp_helper_skb_frag_address(const skb_frag_t *frag)
{
	return skb_frag_address_safe(frag);
}

struct skb_shared_info *riwarp_helper_skb_shinfo(const struct sk_buff *skb);
struct skb_shared_info *riwarp_helper_skb_shinfo(const struct sk_buff *skb)
{
	return skb_shinfo(skb);
}

u32 riwarp_helper_tcp_skb_ack_seq(const struct sk_buff *skb);
u32 riwarp_helper_tcp_skb_ack_seq(const struct sk_buff *skb)
{
	return TCP_SKB_CB(skb)->ack_seq;
}

void riwarp_helper_tcp_skb_set_ack_seq(struct sk_buff *skb, u32 seq);
void riwarp_helper_tcp_skb_set_ack_seq(struct sk_buff *skb, u32 seq)
{
	TCP_SKB_CB(skb)->ack_seq = seq;
}

u32 riwarp_helper_tcp_skb_seq(const struct sk_buff *skb);
u32 riwarp_helper_tcp_skb_seq(const struct sk_buff *skb)
{
	return TCP_SKB_CB(skb)->seq +
	       !!(TCP_SKB_CB(skb)->tcp_flags & TCPHDR_SYN);
}

#if IS_ENABLED(CONFIG_KUNIT)
struct net_device *riwarp_helper_loopback(void);
struct net_device *riwarp_helper_loopback(void)
{
	return init_net.loopback_dev;
}

/* Returns a socket buffer with n octets in its linear part. */
struct sk_buff *riwarp_helper_skb_with(const void *octets, unsigned int n);
struct sk_buff *riwarp_helper_skb_with(const void *octets, unsigned int n)
{
	struct sk_buff *skb = alloc_skb(n, GFP_KERNEL);

	if (skb)
		skb_put_data(skb, octets, n);
	return skb;
}

/* Queues a socket buffer as if TCP had received it, with its first octets a second time. */
void riwarp_helper_tcp_queue_skb(struct sock *sk, struct sk_buff *skb, unsigned int repeated);
void riwarp_helper_tcp_queue_skb(struct sock *sk, struct sk_buff *skb, unsigned int repeated)
{
	TCP_SKB_CB(skb)->seq = tcp_sk(sk)->rcv_nxt - repeated;
	TCP_SKB_CB(skb)->tcp_flags = 0;
	tcp_sk(sk)->rcv_nxt += skb->len - repeated;
	__skb_queue_tail(&sk->sk_receive_queue, skb);
}

/* Frees what was queued so, n new octets in all. */
void riwarp_helper_tcp_unqueue_skbs(struct sock *sk, unsigned int n);
void riwarp_helper_tcp_unqueue_skbs(struct sock *sk, unsigned int n)
{
	__skb_queue_purge(&sk->sk_receive_queue);
	tcp_sk(sk)->rcv_nxt -= n;
}

void riwarp_helper_set_small_windows(bool small);
void riwarp_helper_set_small_windows(bool small)
{
	WRITE_ONCE(init_net.ipv4.sysctl_tcp_workaround_signed_windows, small);
}
#endif
