// SPDX-License-Identifier: GPL-2.0
/*
 * Counts the shapes of the socket buffers in which octets arrive at TCP sockets of the kernel's
 * own, such as those of a queue pair: /sys/module/shapes/parameters has a number for each shape.
 * Two processors may count at a time, so a number may be a little too small: a race that is meant.
 */

#include <linux/module.h>
#include <linux/skbuff.h>
#include <linux/tcp.h>
#include <linux/tracepoint.h>
#include <net/sock.h>

#define SHAPE(name)			\
	static unsigned long name;	\
	module_param(name, ulong, 0444)

SHAPE(all);
/* None, one, and all octets of the payload are in the linear part. */
SHAPE(linear_none);
SHAPE(linear_one);
SHAPE(linear_all);
/* Some octets of the payload are in the linear part, others in fragments. */
SHAPE(linear_some);
SHAPE(frags_16_or_17);
SHAPE(frag_list);
/* A frag_list with a member that has fragments, or a linear part. */
SHAPE(frag_list_of_frags);
SHAPE(frag_list_of_linear);
SHAPE(cloned);
SHAPE(cloned_frag_list);
SHAPE(gso);
/* The checksum is left to a device. */
SHAPE(partial);

/* Adds one to the number of a shape that the buffer has. */
#define COUNT(shape, has) data_race(shape += (has))

static struct tracepoint *tcp_probe;

static void probe(void *data, struct sock *sk, const struct sk_buff *skb)
{
	const struct tcphdr *th = (const struct tcphdr *)skb->data;
	unsigned int headers = th->doff * 4;
	unsigned int linear = skb_headlen(skb) - headers;
	const struct sk_buff *member;

	/* A socket of a process has a file. One that was not accepted yet has neither. */
	if (!sk->sk_socket || sk->sk_socket->file || skb->len <= headers)
		return;
	COUNT(all, 1);
	COUNT(linear_none, !linear);
	COUNT(linear_one, linear == 1);
	COUNT(linear_all, !skb->data_len);
	COUNT(linear_some, linear && skb->data_len);
	COUNT(frags_16_or_17, skb_shinfo(skb)->nr_frags >= 16);
	COUNT(frag_list, skb_has_frag_list(skb));
	skb_walk_frags(skb, member) {
		COUNT(frag_list_of_frags, skb_shinfo(member)->nr_frags > 0);
		COUNT(frag_list_of_linear, skb_headlen(member) > 0);
	}
	COUNT(cloned, skb_cloned(skb));
	COUNT(cloned_frag_list, skb_cloned(skb) && skb_has_frag_list(skb));
	COUNT(gso, skb_is_gso(skb));
	COUNT(partial, skb->ip_summed == CHECKSUM_PARTIAL);
}

static void find(struct tracepoint *tracepoint, void *data)
{
	if (!strcmp(tracepoint->name, "tcp_probe"))
		tcp_probe = tracepoint;
}

static int __init shapes_init(void)
{
	for_each_kernel_tracepoint(find, NULL);
	if (!tcp_probe)
		return -ENOENT;
	return tracepoint_probe_register(tcp_probe, (void *)probe, NULL);
}

static void __exit shapes_exit(void)
{
	tracepoint_probe_unregister(tcp_probe, (void *)probe, NULL);
	tracepoint_synchronize_unregister();
}

module_init(shapes_init);
module_exit(shapes_exit);
MODULE_DESCRIPTION("Counts the shapes of socket buffers, for tests");
MODULE_LICENSE("GPL");
