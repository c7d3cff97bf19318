// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel's own helpers (rust/helpers of its source) that riwarp often calls through the kernel
 * crate, under the kernel's names, for a build that inlines them (Kbuild). Those that are not here
 * are called: the kernel exports all of its helpers.
 */
#include <linux/atomic.h>
#include <linux/err.h>
#include <linux/lockdep.h>
#include <linux/mutex.h>
#include <linux/rbtree.h>
#include <linux/rcupdate.h>
#include <linux/refcount.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/version.h>

#define HELPER_AS(type, name, params, statement)	\
	type rust_helper_##name params;			\
	type rust_helper_##name params			\
	{						\
		statement;				\
	}
#define HELPER(type, name, params, args) HELPER_AS(type, name, params, return name args)

HELPER(void *, ERR_PTR, (long err), (err))
HELPER(bool, IS_ERR, (const void *ptr), (ptr))
HELPER(long, PTR_ERR, (const void *ptr), (ptr))

HELPER_AS(refcount_t, REFCOUNT_INIT, (int n), return (refcount_t)REFCOUNT_INIT(n))
HELPER(bool, refcount_dec_and_test, (refcount_t *r), (r))
HELPER(void, refcount_inc, (refcount_t *r), (r))
HELPER(void, refcount_set, (refcount_t *r, int n), (r, n))

HELPER(int, atomic_read, (const atomic_t *v), (v))
HELPER(int, atomic_read_acquire, (const atomic_t *v), (v))
HELPER(void, atomic_set, (atomic_t *v, int i), (v, i))
HELPER(void, atomic_set_release, (atomic_t *v, int i), (v, i))
HELPER(int, atomic_fetch_add, (int i, atomic_t *v), (i, v))
HELPER(int, atomic_fetch_add_relaxed, (int i, atomic_t *v), (i, v))
HELPER(int, atomic_fetch_sub, (int i, atomic_t *v), (i, v))
HELPER(int, atomic_fetch_sub_relaxed, (int i, atomic_t *v), (i, v))
HELPER(int, atomic_fetch_sub_release, (int i, atomic_t *v), (i, v))
HELPER(int, atomic_xchg_acquire, (atomic_t *v, int new), (v, new))
HELPER(int, atomic_xchg_relaxed, (atomic_t *v, int new), (v, new))
HELPER(bool, atomic_try_cmpxchg, (atomic_t *v, int *old, int new), (v, old, new))
HELPER(bool, atomic_try_cmpxchg_relaxed, (atomic_t *v, int *old, int new), (v, old, new))
HELPER(bool, atomic_try_cmpxchg_release, (atomic_t *v, int *old, int new), (v, old, new))

HELPER(s64, atomic64_read, (const atomic64_t *v), (v))
HELPER(void, atomic64_set, (atomic64_t *v, s64 i), (v, i))
HELPER(s64, atomic64_fetch_add_relaxed, (s64 i, atomic64_t *v), (i, v))
HELPER(bool, atomic64_try_cmpxchg, (atomic64_t *v, s64 *old, s64 new), (v, old, new))

HELPER_AS(s8, atomic_i8_read, (s8 *ptr), return READ_ONCE(*ptr))
HELPER_AS(s8, atomic_i8_read_acquire, (s8 *ptr), return smp_load_acquire(ptr))
HELPER_AS(void, atomic_i8_set, (s8 *ptr, s8 val), WRITE_ONCE(*ptr, val))
HELPER_AS(void, atomic_i8_set_release, (s8 *ptr, s8 val), smp_store_release(ptr, val))
HELPER_AS(s8, atomic_i8_xchg, (s8 *ptr, s8 new), return xchg(ptr, new))
HELPER_AS(s8, atomic_i8_xchg_acquire, (s8 *ptr, s8 new), return xchg_acquire(ptr, new))
HELPER_AS(s8, atomic_i8_xchg_relaxed, (s8 *ptr, s8 new), return xchg_relaxed(ptr, new))
HELPER_AS(s16, atomic_i16_read_acquire, (s16 *ptr), return smp_load_acquire(ptr))
HELPER_AS(void, atomic_i16_set_release, (s16 *ptr, s16 val), smp_store_release(ptr, val))
HELPER_AS(const void *, atomic_ptr_read_acquire, (const void **ptr), return smp_load_acquire(ptr))
HELPER_AS(const void *, atomic_ptr_xchg, (const void **ptr, const void *new), return xchg(ptr, new))
HELPER_AS(bool, atomic_ptr_try_cmpxchg, (const void **ptr, const void **old, const void *new),
	  return try_cmpxchg(ptr, old, new))

HELPER_AS(void, smp_mb, (void), smp_mb())
HELPER(unsigned int, raw_smp_processor_id, (void), ())
HELPER(void, rcu_read_lock, (void), ())
HELPER(void, rcu_read_unlock, (void), ())

HELPER(void, spin_lock, (spinlock_t *lock), (lock))
HELPER(void, spin_unlock, (spinlock_t *lock), (lock))
HELPER_AS(void, spin_assert_is_held, (spinlock_t *lock), lockdep_assert_held(lock))
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 3, 0)
HELPER(void, spin_lock_irq_disable, (spinlock_t *lock), (lock))
HELPER(void, spin_unlock_irq_enable, (spinlock_t *lock), (lock))
#endif

HELPER_AS(void, mutex_assert_is_held, (struct mutex *mutex), lockdep_assert_held(mutex))

HELPER(void *, krealloc_node_align,
       (const void *objp, size_t size, unsigned long align, gfp_t flags, int node),
       (objp, size, align, flags, node))
HELPER(void, rb_link_node, (struct rb_node *node, struct rb_node *parent, struct rb_node **link),
       (node, parent, link))
