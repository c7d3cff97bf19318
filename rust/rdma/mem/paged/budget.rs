// SPDX-License-Identifier: GPL-2.0

//! Limits to the memory that is paged on demand.
//!
//! It is not pinned, so no limit of pinned memory counts it. But each page takes room in two
//! tables, of which one is not charged to a cgroup, whether anything is mapped there or not; and
//! each region has a notifier, which the kernel calls for each page that it takes from the process:
//! with a million regions over one page it would call a million. So both are counted.
//!
//! Context: process.

use crate::warn_on_once;
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;

/// What one [`PagedBudget`] allows at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedLimits {
    /// The number of regions.
    pub regions: u64,
    /// The number of pages that the regions together cover, mapped or not.
    pub pages: u64,
}

/// What is used of [`PagedLimits`], and of the limits of a larger group that this one belongs to.
pub struct PagedBudget {
    limits: PagedLimits,
    // ORDERING: Relaxed: the counts stand for no other memory.
    regions: Atomic<u64>,
    pages: Atomic<u64>,
    parent: Option<Arc<Self>>,
}

/// A region that is counted, until it is dropped.
pub(super) struct PagedCharge {
    budget: Arc<PagedBudget>,
    pages: u64,
}

/// Adds to a count if it stays within `most`; returns whether it did. Meanwhile the count may be
/// above, so that another call near the limit fails too.
fn add(count: &Atomic<u64>, n: u64, most: u64) -> bool {
    // NO-OVERFLOW: the sum is at most `most`, and each running call adds less than 2^52 pages.
    let within = count
        .fetch_add(n, Relaxed)
        .checked_add(n)
        .is_some_and(|sum| sum <= most);
    if !within {
        count.fetch_sub(n, Relaxed);
    }
    within
}

impl PagedBudget {
    /// Creates a budget, of which nothing is used.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(limits: PagedLimits, parent: Option<Arc<Self>>) -> Result<Arc<Self>> {
        let this = Self {
            limits,
            regions: Atomic::new(0),
            pages: Atomic::new(0),
            parent,
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    /// Counts a region of so many pages.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if a limit would be exceeded; then nothing is counted.
    pub(super) fn charge(self: &Arc<Self>, pages: u64) -> Result<PagedCharge> {
        for (level, budget) in self.levels().enumerate() {
            if !budget.take(pages) {
                self.levels()
                    .take(level)
                    .for_each(|budget| budget.give_back(pages));
                return Err(ENOMEM);
            }
        }
        Ok(PagedCharge {
            budget: self.clone(),
            pages,
        })
    }

    /// Returns this budget, and those that it belongs to.
    fn levels(&self) -> impl Iterator<Item = &Self> {
        core::iter::successors(Some(self), |budget| budget.parent.as_deref())
    }

    fn take(&self, pages: u64) -> bool {
        if !add(&self.regions, 1, self.limits.regions) {
            return false;
        }
        let taken = add(&self.pages, pages, self.limits.pages);
        if !taken {
            self.regions.fetch_sub(1, Relaxed);
        }
        taken
    }

    fn give_back(&self, pages: u64) {
        let regions = self.regions.fetch_sub(1, Relaxed);
        let before = self.pages.fetch_sub(pages, Relaxed);
        // `take` has counted both.
        warn_on_once!(regions == 0 || before < pages);
    }
}

impl Drop for PagedCharge {
    fn drop(&mut self) {
        self.budget
            .levels()
            .for_each(|budget| budget.give_back(self.pages));
    }
}

#[kernel::prelude::kunit_tests(riwarp_paged_budget)]
mod tests {
    use super::*;

    fn used(budget: &PagedBudget) -> (u64, u64) {
        (budget.regions.load(Relaxed), budget.pages.load(Relaxed))
    }

    #[test]
    fn regions_and_pages_are_limited_and_given_back() -> Result {
        let limits = PagedLimits {
            regions: 3,
            pages: 100,
        };
        let budget = PagedBudget::new(limits, None)?;
        for pages in [101, u64::MAX] {
            assert_eq!(budget.charge(pages).err(), Some(ENOMEM));
        }
        let first = budget.charge(60)?;
        assert_eq!(budget.charge(41).err(), Some(ENOMEM));
        let _second = budget.charge(40)?;
        assert_eq!(budget.charge(1).err(), Some(ENOMEM));
        assert_eq!(used(&budget), (2, 100));
        drop(first);
        let _third = budget.charge(1)?;
        let fourth = budget.charge(1)?;
        assert_eq!(budget.charge(1).err(), Some(ENOMEM));
        drop(fourth);
        assert_eq!(used(&budget), (2, 41));
        Ok(())
    }

    #[test]
    fn charge_refused_by_group_is_not_counted() -> Result {
        let limits = |regions, pages| PagedLimits { regions, pages };
        let group = PagedBudget::new(limits(3, 100), None)?;
        let one = PagedBudget::new(limits(10, 80), Some(group.clone()))?;
        let other = PagedBudget::new(limits(10, 80), Some(group.clone()))?;
        let large = one.charge(80)?;
        assert_eq!(other.charge(21).err(), Some(ENOMEM));
        assert_eq!((used(&other), used(&group)), ((0, 0), (1, 80)));
        let _small = other.charge(20)?;
        assert_eq!(one.charge(1).err(), Some(ENOMEM));
        assert_eq!((used(&one), used(&group)), ((1, 80), (2, 100)));
        drop(large);
        assert_eq!((used(&one), used(&group)), ((0, 0), (1, 20)));
        Ok(())
    }
}
