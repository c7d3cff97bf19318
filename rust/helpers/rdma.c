// SPDX-License-Identifier: GPL-2.0
/* Helpers of rust/rdma.rs and rust/rdma/. */
#include <linux/capability.h>
#include <linux/device.h>
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/hmm.h>
#include <linux/mmu_notifier.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>
#include <linux/skbuff.h>
#include <linux/sysfs.h>
#include <net/netlink.h>
#include <rdma/ib_sysfs.h>
#include <rdma/ib_umem_odp.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_netlink.h>
#include <rdma/uverbs_ioctl.h>

void riwarp_helper_attribute_group_set(struct attribute_group *group,
				       struct attribute **attrs);
void riwarp_helper_attribute_group_set(struct attribute_group *group,
				       struct attribute **attrs)
{
	group->attrs = attrs;
}

void riwarp_helper_current_comm(char *comm);
void riwarp_helper_current_comm(char *comm)
{
	strscpy_pad(comm, current->comm, TASK_COMM_LEN);
}

bool riwarp_helper_current_is_exiting(void);
bool riwarp_helper_current_is_exiting(void)
{
	return current->flags & PF_EXITING;
}

struct attribute *
riwarp_helper_device_attribute_init(struct device_attribute *attr,
				    const char *name,
				    ssize_t (*show)(struct device *,
						    struct device_attribute *,
						    char *),
				    ssize_t (*store)(struct device *,
						     struct device_attribute *,
						     const char *, size_t));
struct attribute *
riwarp_helper_device_attribute_init(struct device_attribute *attr,
				    const char *name,
				    ssize_t (*show)(struct device *,
						    struct device_attribute *,
						    char *),
				    ssize_t (*store)(struct device *,
						     struct device_attribute *,
						     const char *, size_t))
{
	sysfs_attr_init(&attr->attr);
	attr->attr.name = name;
	attr->attr.mode = store ? 0644 : 0444;
	attr->show = show;
	attr->store = store;
	return &attr->attr;
}

bool riwarp_helper_dma_buf_is_writable(const struct dma_buf *buf);
bool riwarp_helper_dma_buf_is_writable(const struct dma_buf *buf)
{
	return buf->file->f_mode & FMODE_WRITE;
}

void riwarp_helper_dma_buf_lock(struct dma_buf *buf);
void riwarp_helper_dma_buf_lock(struct dma_buf *buf)
{
	dma_resv_lock(buf->resv, NULL);
}

void riwarp_helper_dma_buf_unlock(struct dma_buf *buf);
void riwarp_helper_dma_buf_unlock(struct dma_buf *buf)
{
	dma_resv_unlock(buf->resv);
}

int riwarp_helper_dma_buf_vmap(struct dma_buf *buf, struct iosys_map *map);
int riwarp_helper_dma_buf_vmap(struct dma_buf *buf, struct iosys_map *map)
{
	return buf->ops->vmap(buf, map);
}

void *riwarp_helper_hmm_pfn_address(unsigned long pfn);
void *riwarp_helper_hmm_pfn_address(unsigned long pfn)
{
	return page_address(hmm_pfn_to_page(pfn));
}

void riwarp_helper_ib_device_get_device(struct ib_device *device);
void riwarp_helper_ib_device_get_device(struct ib_device *device)
{
	get_device(&device->dev);
}

bool riwarp_helper_ib_device_is_moving(struct ib_device *device);
bool riwarp_helper_ib_device_is_moving(struct ib_device *device)
{
	/* ib_core holds it for the whole of both, and for nothing else. */
	return mutex_is_locked(&device->unregistration_lock);
}

void riwarp_helper_ib_device_put_device(struct ib_device *device);
void riwarp_helper_ib_device_put_device(struct ib_device *device)
{
	put_device(&device->dev);
}

bool riwarp_helper_ib_device_try_get(struct ib_device *device);
bool riwarp_helper_ib_device_try_get(struct ib_device *device)
{
	return ib_device_try_get(device);
}

struct attribute *
riwarp_helper_ib_port_attribute_init(struct ib_port_attribute *attr,
				     const char *name,
				     ssize_t (*show)(struct ib_device *, u32,
						     struct ib_port_attribute *,
						     char *));
struct attribute *
riwarp_helper_ib_port_attribute_init(struct ib_port_attribute *attr,
				     const char *name,
				     ssize_t (*show)(struct ib_device *, u32,
						     struct ib_port_attribute *,
						     char *))
{
	sysfs_attr_init(&attr->attr);
	attr->attr.name = name;
	attr->attr.mode = 0444;
	attr->show = show;
	return &attr->attr;
}

bool riwarp_helper_interval_read_retry(struct mmu_interval_notifier *notifier,
				       unsigned long seq);
bool riwarp_helper_interval_read_retry(struct mmu_interval_notifier *notifier,
				       unsigned long seq)
{
	return mmu_interval_read_retry(notifier, seq);
}

void riwarp_helper_interval_set_seq(struct mmu_interval_notifier *notifier,
				    unsigned long seq);
void riwarp_helper_interval_set_seq(struct mmu_interval_notifier *notifier,
				    unsigned long seq)
{
	mmu_interval_set_seq(notifier, seq);
}

bool riwarp_helper_is_trusted(void);
bool riwarp_helper_is_trusted(void)
{
	return (current->flags & PF_KTHREAD) || capable(CAP_NET_ADMIN);
}

void riwarp_helper_nla_nest_cancel(struct sk_buff *skb, struct nlattr *start);
void riwarp_helper_nla_nest_cancel(struct sk_buff *skb, struct nlattr *start)
{
	nla_nest_cancel(skb, start);
}

void riwarp_helper_nla_nest_end(struct sk_buff *skb, struct nlattr *start);
void riwarp_helper_nla_nest_end(struct sk_buff *skb, struct nlattr *start)
{
	nla_nest_end(skb, start);
}

struct nlattr *riwarp_helper_nla_nest_start_noflag(struct sk_buff *skb, int attrtype);
struct nlattr *riwarp_helper_nla_nest_start_noflag(struct sk_buff *skb, int attrtype)
{
	return nla_nest_start_noflag(skb, attrtype);
}

bool riwarp_helper_range_may_block(const struct mmu_notifier_range *range);
bool riwarp_helper_range_may_block(const struct mmu_notifier_range *range)
{
	return mmu_notifier_range_blockable(range);
}

struct ib_device *riwarp_helper_rdma_device_to_ibdev(struct device *dev);
struct ib_device *riwarp_helper_rdma_device_to_ibdev(struct device *dev)
{
	return rdma_device_to_ibdev(dev);
}

struct ib_ucontext *riwarp_helper_rdma_udata_to_ucontext(struct ib_udata *udata);
struct ib_ucontext *riwarp_helper_rdma_udata_to_ucontext(struct ib_udata *udata)
{
	return rdma_udata_to_uverbs_attr_bundle(udata)->context;
}

u64 riwarp_helper_rdma_user_mmap_get_offset(const struct rdma_user_mmap_entry *entry);
u64 riwarp_helper_rdma_user_mmap_get_offset(const struct rdma_user_mmap_entry *entry)
{
	return rdma_user_mmap_get_offset(entry);
}

u64 riwarp_helper_sg_dma_address(struct scatterlist *sg);
u64 riwarp_helper_sg_dma_address(struct scatterlist *sg)
{
	return sg_dma_address(sg);
}

unsigned int riwarp_helper_sg_dma_len(struct scatterlist *sg);
unsigned int riwarp_helper_sg_dma_len(struct scatterlist *sg)
{
	return sg_dma_len(sg);
}

struct scatterlist *riwarp_helper_sg_next(struct scatterlist *sg);
struct scatterlist *riwarp_helper_sg_next(struct scatterlist *sg)
{
	return sg_next(sg);
}

void *riwarp_helper_sg_virt(struct scatterlist *sg);
void *riwarp_helper_sg_virt(struct scatterlist *sg)
{
	return sg_virt(sg);
}

void riwarp_helper_umem_odp_lock(struct ib_umem_odp *odp);
void riwarp_helper_umem_odp_lock(struct ib_umem_odp *odp)
{
	mutex_lock(&odp->umem_mutex);
}

struct ib_umem_odp *
riwarp_helper_umem_odp_of(struct mmu_interval_notifier *notifier);
struct ib_umem_odp *
riwarp_helper_umem_odp_of(struct mmu_interval_notifier *notifier)
{
	return container_of(notifier, struct ib_umem_odp, notifier);
}

void riwarp_helper_umem_odp_unlock(struct ib_umem_odp *odp);
void riwarp_helper_umem_odp_unlock(struct ib_umem_odp *odp)
{
	mutex_unlock(&odp->umem_mutex);
}

struct ib_udata *
riwarp_helper_uverbs_attr_bundle_to_udata(struct uverbs_attr_bundle *attrs);
struct ib_udata *
riwarp_helper_uverbs_attr_bundle_to_udata(struct uverbs_attr_bundle *attrs)
{
	return &attrs->driver_udata;
}

#if IS_ENABLED(CONFIG_KUNIT)
struct sk_buff *riwarp_helper_alloc_skb(unsigned int size);
struct sk_buff *riwarp_helper_alloc_skb(unsigned int size)
{
	return alloc_skb(size, GFP_KERNEL);
}

int riwarp_helper_ib_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			       const struct ib_send_wr **bad);
int riwarp_helper_ib_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			       const struct ib_send_wr **bad)
{
	return ib_post_send(qp, wr, bad);
}
#endif
