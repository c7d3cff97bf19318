// SPDX-License-Identifier: GPL-2.0
/* Helpers of rust/sync.rs and rust/sync/. */
#include <linux/bottom_half.h>
#include <linux/irqflags.h>
#include <linux/preempt.h>
#include <linux/processor.h>
#include <linux/spinlock.h>

void riwarp_helper_cpu_relax(void);
void riwarp_helper_cpu_relax(void)
{
	cpu_relax();
}

/*
 * Returns false if bottom halves are off already: with interrupts disabled, when enabling them
 * later would be wrong, and in a softirq.
 */
bool riwarp_helper_bh_off(void);
bool riwarp_helper_bh_off(void)
{
	if (irqs_disabled() || in_serving_softirq())
		return false;
	local_bh_disable();
	return true;
}

bool riwarp_helper_irqs_disabled(void);
bool riwarp_helper_irqs_disabled(void)
{
	return irqs_disabled();
}

void riwarp_helper_local_bh_disable(void);
void riwarp_helper_local_bh_disable(void)
{
	local_bh_disable();
}

void riwarp_helper_local_bh_enable(void);
void riwarp_helper_local_bh_enable(void)
{
	local_bh_enable();
}

#ifdef CONFIG_PREEMPT_RT
int riwarp_helper_read_trylock(rwlock_t *lock);
int riwarp_helper_read_trylock(rwlock_t *lock)
{
	return read_trylock(lock);
}

void riwarp_helper_read_unlock(rwlock_t *lock);
void riwarp_helper_read_unlock(rwlock_t *lock)
{
	read_unlock(lock);
}

/* Locks of values that nest in each other have this one class, so lockdep does not order them. */
void riwarp_helper_rwlock_init(rwlock_t *lock);
void riwarp_helper_rwlock_init(rwlock_t *lock)
{
	rwlock_init(lock);
	lockdep_set_novalidate_class(lock);
}

void riwarp_helper_write_lock(rwlock_t *lock);
void riwarp_helper_write_lock(rwlock_t *lock)
{
	write_lock(lock);
}

void riwarp_helper_write_unlock(rwlock_t *lock);
void riwarp_helper_write_unlock(rwlock_t *lock)
{
	write_unlock(lock);
}
#endif

void riwarp_helper_spin_lock_bh(spinlock_t *lock);
void riwarp_helper_spin_lock_bh(spinlock_t *lock)
{
	spin_lock_bh(lock);
}

int riwarp_helper_spin_trylock_bh(spinlock_t *lock);
int riwarp_helper_spin_trylock_bh(spinlock_t *lock)
{
	return spin_trylock_bh(lock);
}

void riwarp_helper_spin_unlock_bh(spinlock_t *lock);
void riwarp_helper_spin_unlock_bh(spinlock_t *lock)
{
	spin_unlock_bh(lock);
}

unsigned int riwarp_helper_raw_smp_processor_id(void);
unsigned int riwarp_helper_raw_smp_processor_id(void)
{
	return raw_smp_processor_id();
}

#if IS_ENABLED(CONFIG_KUNIT)
void riwarp_helper_local_irq_restore(unsigned long flags);
void riwarp_helper_local_irq_restore(unsigned long flags)
{
	local_irq_restore(flags);
}

unsigned long riwarp_helper_local_irq_save(void);
unsigned long riwarp_helper_local_irq_save(void)
{
	unsigned long flags;

	local_irq_save(flags);
	return flags;
}

#ifdef CONFIG_PREEMPT_RT
bool riwarp_helper_rwlock_is_locked(rwlock_t *lock);
bool riwarp_helper_rwlock_is_locked(rwlock_t *lock)
{
	return rw_base_is_locked(&lock->rwbase);
}
#endif
#endif
