// SPDX-License-Identifier: GPL-2.0

#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/hmm.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <rdma/ib_umem_odp.h>

void riwarp_helper_cond_resched(void);
void riwarp_helper_cond_resched(void)
{
	cond_resched();
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

bool riwarp_helper_is_being_killed(void);
bool riwarp_helper_is_being_killed(void)
{
	return fatal_signal_pending(current);
}

/* Returns whether the kernel can read the octet. A fault is handled. */
bool riwarp_helper_is_readable(const void *address);
bool riwarp_helper_is_readable(const void *address)
{
	char octet;

	return !copy_from_kernel_nofault(&octet, address, sizeof(octet));
}

bool riwarp_helper_has_fast_strings(void);
bool riwarp_helper_has_fast_strings(void)
{
#if defined(CONFIG_X86_64) && !defined(CONFIG_UML)
	return boot_cpu_has(X86_FEATURE_ERMS);
#else
	return false;
#endif
}

void riwarp_helper_fs_reclaim_acquire(void);
void riwarp_helper_fs_reclaim_acquire(void)
{
	fs_reclaim_acquire(GFP_KERNEL);
}

void riwarp_helper_fs_reclaim_release(void);
void riwarp_helper_fs_reclaim_release(void)
{
	fs_reclaim_release(GFP_KERNEL);
}

void riwarp_helper_memalloc_noio_restore(unsigned int flags);
void riwarp_helper_memalloc_noio_restore(unsigned int flags)
{
	memalloc_noio_restore(flags);
}

unsigned int riwarp_helper_memalloc_noio_save(void);
unsigned int riwarp_helper_memalloc_noio_save(void)
{
	return memalloc_noio_save();
}

struct mem_cgroup *riwarp_helper_memcg_current(void);
struct mem_cgroup *riwarp_helper_memcg_current(void)
{
	return get_mem_cgroup_from_mm(current->mm);
}

bool riwarp_helper_memcg_charge(void *object);
bool riwarp_helper_memcg_charge(void *object)
{
	return is_vmalloc_addr(object) || kmem_cache_charge(object, GFP_ATOMIC);
}

bool riwarp_helper_memcg_get(struct mem_cgroup *memcg);
bool riwarp_helper_memcg_get(struct mem_cgroup *memcg)
{
	return mem_cgroup_tryget(memcg);
}

/* The condition of mem_cgroup_sk_alloc(), for the unified hierarchy. */
bool riwarp_helper_memcg_pays_for_sockets(struct mem_cgroup *memcg);
bool riwarp_helper_memcg_pays_for_sockets(struct mem_cgroup *memcg)
{
#ifdef CONFIG_MEMCG
	return mem_cgroup_sockets_enabled && memcg && !mem_cgroup_is_root(memcg) &&
	       cgroup_subsys_on_dfl(memory_cgrp_subsys);
#else
	return false;
#endif
}

void riwarp_helper_memcg_put(struct mem_cgroup *memcg);
void riwarp_helper_memcg_put(struct mem_cgroup *memcg)
{
	mem_cgroup_put(memcg);
}

struct mem_cgroup *riwarp_helper_memcg_root(void);
struct mem_cgroup *riwarp_helper_memcg_root(void)
{
	return root_mem_cgroup;
}

void riwarp_helper_mmap_read_lock(struct mm_struct *mm);
void riwarp_helper_mmap_read_lock(struct mm_struct *mm)
{
	mmap_read_lock(mm);
}

void riwarp_helper_mmap_read_unlock(struct mm_struct *mm);
void riwarp_helper_mmap_read_unlock(struct mm_struct *mm)
{
	mmap_read_unlock(mm);
}

bool riwarp_helper_mmget_not_zero(struct mm_struct *mm);
bool riwarp_helper_mmget_not_zero(struct mm_struct *mm)
{
	return mmget_not_zero(mm);
}

void *riwarp_helper_page_address(struct page *page);
void *riwarp_helper_page_address(struct page *page)
{
	return page_address(page);
}

bool riwarp_helper_range_may_block(const struct mmu_notifier_range *range);
bool riwarp_helper_range_may_block(const struct mmu_notifier_range *range)
{
	return mmu_notifier_range_blockable(range);
}

struct mem_cgroup *riwarp_helper_set_active_memcg(struct mem_cgroup *memcg);
struct mem_cgroup *riwarp_helper_set_active_memcg(struct mem_cgroup *memcg)
{
	return set_active_memcg(memcg);
}

void riwarp_helper_set_page_dirty(const void *address);
void riwarp_helper_set_page_dirty(const void *address)
{
	set_page_dirty(compound_head(virt_to_page(address)));
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

unsigned long riwarp_helper_totalram_pages(void);
unsigned long riwarp_helper_totalram_pages(void)
{
	return totalram_pages();
}

void *riwarp_helper_vmap_for_processes(struct page **pages, unsigned int count);
void *riwarp_helper_vmap_for_processes(struct page **pages, unsigned int count)
{
	return vmap(pages, count, VM_USERMAP | VM_MAP_PUT_PAGES, PAGE_KERNEL);
}

vm_flags_t riwarp_helper_vm_shadow_stack(void);
vm_flags_t riwarp_helper_vm_shadow_stack(void)
{
	return VM_SHADOW_STACK;
}
