/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The headers for which bindgen makes bindings; see bindgen_parameters. They
 * leave out what the kernel's bindings contain (bindings.rs).
 */
#include <linux/errno.h>
#include <linux/skbuff.h>
#include <linux/tcp.h>
#include <linux/crc32.h>
#include <linux/inetdevice.h>
#include <linux/netdevice.h>
#include <linux/if_arp.h>
#include <linux/bvec.h>
#include <linux/uio.h>
#include <linux/hmm.h>
#include <linux/vmalloc.h>
#include <net/sock.h>
#include <net/tcp.h>
#include <net/inet_sock.h>
#include <net/inet_connection_sock.h>
#include <net/addrconf.h>
#include <net/net_namespace.h>
#include <rdma/ib_verbs.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_umem_odp.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/iw_cm.h>
#include <rdma/rdma_netlink.h>
#include <rdma/uverbs_ioctl.h>
#include <rdma/restrack.h>
