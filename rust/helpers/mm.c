// SPDX-License-Identifier: GPL-2.0

#include <linux/dma-buf.h>
#include <linux/fs.h>
#include <linux/scatterlist.h>

bool riwarp_helper_dma_buf_is_writable(const struct dma_buf *buf);
bool riwarp_helper_dma_buf_is_writable(const struct dma_buf *buf)
{
	return buf->file->f_mode & FMODE_WRITE;
}

void *riwarp_helper_sg_virt(struct scatterlist *sg);
void *riwarp_helper_sg_virt(struct scatterlist *sg)
{
	return sg_virt(sg);
}
