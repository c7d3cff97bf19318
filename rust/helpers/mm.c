// SPDX-License-Identifier: GPL-2.0

#include <linux/io.h>
#include <linux/ioport.h>
#include <linux/libnvdimm.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

void riwarp_helper_cond_resched(void);
void riwarp_helper_cond_resched(void)
{
	cond_resched();
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

/* Memory that the firmware describes (NFIT), or the parameter memmap= ("legacy"). */
bool riwarp_helper_is_persistent(void *start, size_t len);
bool riwarp_helper_is_persistent(void *start, size_t len)
{
	phys_addr_t at = virt_to_phys(start);

	return region_intersects(at, len, IORESOURCE_MEM, IORES_DESC_PERSISTENT_MEMORY) ==
		       REGION_INTERSECTS ||
	       region_intersects(at, len, IORESOURCE_MEM, IORES_DESC_PERSISTENT_MEMORY_LEGACY) ==
		       REGION_INTERSECTS;
}

void riwarp_helper_write_back(void *start, size_t len);
void riwarp_helper_write_back(void *start, size_t len)
{
	arch_wb_cache_pmem(start, len);
	/* On x86 only a fence waits for the instructions of that. */
	wmb();
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
