// SPDX-License-Identifier: GPL-2.0

#include <linux/scatterlist.h>

void *riwarp_helper_sg_virt(struct scatterlist *sg);
void *riwarp_helper_sg_virt(struct scatterlist *sg)
{
	return sg_virt(sg);
}
