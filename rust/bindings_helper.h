/* SPDX-License-Identifier: GPL-2.0 */
/* The headers of which bindgen makes bindings; bindgen_parameters says of what in them. */
#include <linux/bvec.h>
#include <linux/crc32.h>
#include <linux/device.h>
#include <linux/dma-buf.h>
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/hmm.h>
#include <linux/if_arp.h>
#include <linux/inetdevice.h>
#include <linux/iosys-map.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/random.h>
#include <linux/ratelimit.h>
#include <linux/sched/mm.h>
#include <linux/skbuff.h>
#include <linux/smp.h>
#include <linux/sysfs.h>
#include <linux/tcp.h>
#include <linux/tls.h>
#include <linux/uio.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <net/addrconf.h>
#include <net/inet_connection_sock.h>
#include <net/inet_sock.h>
#include <net/net_namespace.h>
#include <net/netlink.h>
#include <net/sock.h>
#include <net/tcp.h>
#include <rdma/ib_sysfs.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_umem_odp.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/ib_verbs.h>
#include <rdma/iw_cm.h>
#include <rdma/rdma_netlink.h>
#include <rdma/restrack.h>
#include <rdma/uverbs_ioctl.h>

/* A cast, of which bindgen makes no constant. */
static const xa_mark_t RIWARP_XA_PRESENT = XA_PRESENT;
