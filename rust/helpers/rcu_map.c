// SPDX-License-Identifier: GPL-2.0
/* Helpers of rust/rcu_map.rs. */
#include <linux/workqueue.h>
#include <linux/xarray.h>

void riwarp_helper_init_rcu_work(struct rcu_work *rwork, work_func_t run);
void riwarp_helper_init_rcu_work(struct rcu_work *rwork, work_func_t run)
{
	INIT_RCU_WORK(rwork, run);
}

int riwarp_helper_xa_err(void *entry);
int riwarp_helper_xa_err(void *entry)
{
	return xa_err(entry);
}

void riwarp_helper_xa_init(struct xarray *xa);
void riwarp_helper_xa_init(struct xarray *xa)
{
	xa_init_flags(xa, XA_FLAGS_ALLOC | XA_FLAGS_ACCOUNT);
}

int riwarp_helper_xa_reserve(struct xarray *xa, u32 *id, const struct xa_limit *limit, u32 *next);
int riwarp_helper_xa_reserve(struct xarray *xa, u32 *id, const struct xa_limit *limit, u32 *next)
{
	return xa_alloc_cyclic(xa, id, NULL, *limit, next, GFP_KERNEL);
}
