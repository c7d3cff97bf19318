// SPDX-License-Identifier: GPL-2.0
/* Helpers of rust/compat.rs. */
#include <linux/hmm.h>
#include <linux/jiffies.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <linux/spinlock.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 3, 0)
/* As hmm_range_fault_unlocked_timeout() of 7.3, but each walk holds mmap_lock throughout. */
int riwarp_helper_hmm_range_fault(struct hmm_range *range, unsigned long timeout);
int riwarp_helper_hmm_range_fault(struct hmm_range *range, unsigned long timeout)
{
	unsigned long deadline = jiffies + timeout;
	int ret;

	do {
		range->notifier_seq = mmu_interval_read_begin(range->notifier);
		ret = mmap_read_lock_killable(range->notifier->mm);
		if (ret)
			return ret;
		ret = hmm_range_fault(range);
		mmap_read_unlock(range->notifier->mm);
	} while (ret == -EBUSY && time_before(jiffies, deadline));
	return ret;
}

unsigned long riwarp_helper_spin_lock_irqsave(spinlock_t *lock);
unsigned long riwarp_helper_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

bool riwarp_helper_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags);
bool riwarp_helper_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags)
{
	return spin_trylock_irqsave(lock, *flags);
}

void riwarp_helper_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags);
void riwarp_helper_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}
#endif
