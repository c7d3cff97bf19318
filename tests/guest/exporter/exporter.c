// SPDX-License-Identifier: GPL-2.0
/*
 * An exporter of dma-bufs whose memory moves on request unless an importer holds it: from attach or
 * from pin on, as with graphics cards. Old pages are poisoned and kept until the dma-buf is
 * released, so that an access to them is detected and does no harm.
 */

#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/highmem.h>
#include <linux/iosys-map.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "exporter.h"

#define MAX_LEN (1 << 20)

/* The reservation lock protects all but the first three fields. */
struct buffer {
	enum exporter_kind kind;
	unsigned int count;
	unsigned int max_left;
	unsigned int attached, pinned, mapped;
	unsigned int left_count;
	struct page **pages;
	struct page **left;
};

static int buffer_attach(struct dma_buf *buf, struct dma_buf_attachment *attachment)
{
	struct buffer *b = buf->priv;

	if (b->kind == EXPORTER_ATTACH_FAILS)
		return -ENOTUNIQ;
	/* No device here can reach the memory of another. */
	WARN_ON(attachment->peer2peer);
	dma_resv_lock(buf->resv, NULL);
	b->attached++;
	dma_resv_unlock(buf->resv);
	return 0;
}

static void buffer_detach(struct dma_buf *buf, struct dma_buf_attachment *attachment)
{
	struct buffer *b = buf->priv;

	dma_resv_lock(buf->resv, NULL);
	b->attached--;
	/* The last importer has released these in the reverse order. */
	WARN_ON(!b->attached && (b->pinned || b->mapped));
	dma_resv_unlock(buf->resv);
}

static int buffer_pin(struct dma_buf_attachment *attachment)
{
	struct buffer *b = attachment->dmabuf->priv;

	if (b->kind == EXPORTER_PIN_FAILS)
		return -ENOTUNIQ;
	b->pinned++;
	return 0;
}

static void buffer_unpin(struct dma_buf_attachment *attachment)
{
	struct buffer *b = attachment->dmabuf->priv;

	b->pinned--;
	WARN_ON(!b->pinned && b->mapped);
}

static int buffer_vmap(struct dma_buf *buf, struct iosys_map *map)
{
	struct buffer *b = buf->priv;
	void *virt = NULL;

	if (b->kind == EXPORTER_VMAP_FAILS)
		return -ENOTUNIQ;
	if (b->kind != EXPORTER_VMAP_IS_NULL) {
		virt = vmap(b->pages, b->count, VM_MAP, PAGE_KERNEL);
		if (!virt)
			return -ENOMEM;
		b->mapped++;
	}
	iosys_map_set_vaddr(map, virt);
	return 0;
}

static void buffer_vunmap(struct dma_buf *buf, struct iosys_map *map)
{
	struct buffer *b = buf->priv;

	vunmap(map->vaddr);
	b->mapped--;
}

static int buffer_mmap(struct dma_buf *buf, struct vm_area_struct *vma)
{
	struct buffer *b = buf->priv;
	int error;

	dma_resv_lock(buf->resv, NULL);
	error = vm_map_pages(vma, b->pages, b->count);
	dma_resv_unlock(buf->resv);
	return error;
}

/* No device here does DMA. */
static struct sg_table *buffer_map(struct dma_buf_attachment *attachment, enum dma_data_direction direction)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static void buffer_unmap(struct dma_buf_attachment *attachment, struct sg_table *table,
			 enum dma_data_direction direction)
{
}

static void free_pages_of(struct page **pages, unsigned int count)
{
	while (count--)
		if (pages[count])
			put_page(pages[count]);
	kvfree(pages);
}

static void buffer_free(struct buffer *b)
{
	if (b->pages)
		free_pages_of(b->pages, b->count);
	if (b->left)
		free_pages_of(b->left, b->left_count);
	kfree(b);
}

static void buffer_release(struct dma_buf *buf)
{
	struct buffer *b = buf->priv;

	WARN_ON(b->attached || b->pinned || b->mapped);
	buffer_free(b);
}

#define OPS					\
	.attach = buffer_attach,		\
	.detach = buffer_detach,		\
	.map_dma_buf = buffer_map,		\
	.unmap_dma_buf = buffer_unmap,		\
	.release = buffer_release,		\
	.mmap = buffer_mmap,			\
	.vmap = buffer_vmap,			\
	.vunmap = buffer_vunmap

static const struct dma_buf_ops attach_ops = { OPS };
static const struct dma_buf_ops pin_ops = { OPS, .pin = buffer_pin, .unpin = buffer_unpin };

static struct page **new_pages(unsigned int count)
{
	struct page **pages = kvcalloc(count, sizeof(*pages), GFP_KERNEL);

	for (unsigned int i = 0; pages && i < count; i++) {
		pages[i] = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!pages[i]) {
			free_pages_of(pages, count);
			return NULL;
		}
	}
	return pages;
}

static long make(void __user *argument)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct exporter_make how;
	struct dma_buf *buf;
	struct buffer *b;
	int fd;

	if (copy_from_user(&how, argument, sizeof(how)))
		return -EFAULT;
	if (how.kind >= EXPORTER_KINDS || !how.len || how.len > MAX_LEN || how.len % PAGE_SIZE)
		return -EINVAL;
	b = kzalloc(sizeof(*b), GFP_KERNEL);
	if (!b)
		return -ENOMEM;
	b->kind = how.kind;
	b->count = how.len / PAGE_SIZE;
	b->max_left = 8 * b->count;
	b->pages = new_pages(b->count);
	b->left = kvcalloc(b->max_left, sizeof(*b->left), GFP_KERNEL);
	if (!b->pages || !b->left) {
		buffer_free(b);
		return -ENOMEM;
	}
	info.ops = how.kind == EXPORTER_PINS_IN_PIN || how.kind == EXPORTER_PIN_FAILS ? &pin_ops : &attach_ops;
	info.size = how.len;
	info.flags = O_RDWR | O_CLOEXEC;
	info.priv = b;
	buf = dma_buf_export(&info);
	if (IS_ERR(buf)) {
		buffer_free(b);
		return PTR_ERR(buf);
	}
	fd = dma_buf_fd(buf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(buf);
	return fd;
}

/* Returns the dma-buf of a descriptor, if this module exported it. */
static struct dma_buf *buf_of(int fd)
{
	struct dma_buf *buf = dma_buf_get(fd);

	if (!IS_ERR(buf) && buf->ops != &attach_ops && buf->ops != &pin_ops) {
		dma_buf_put(buf);
		return ERR_PTR(-EINVAL);
	}
	return buf;
}

static long look(void __user *argument)
{
	struct exporter_state state;
	struct dma_buf *buf;
	struct buffer *b;

	if (copy_from_user(&state, argument, sizeof(state)))
		return -EFAULT;
	buf = buf_of(state.fd);
	if (IS_ERR(buf))
		return PTR_ERR(buf);
	b = buf->priv;
	dma_resv_lock(buf->resv, NULL);
	state.attached = b->attached;
	state.pinned = b->pinned;
	state.mapped = b->mapped;
	dma_resv_unlock(buf->resv);
	dma_buf_put(buf);
	return copy_to_user(argument, &state, sizeof(state)) ? -EFAULT : 0;
}

static long evict(int fd)
{
	struct dma_buf *buf = buf_of(fd);
	struct page **pages;
	struct buffer *b;
	long error = 0;

	if (IS_ERR(buf))
		return PTR_ERR(buf);
	b = buf->priv;
	pages = new_pages(b->count);
	if (!pages) {
		dma_buf_put(buf);
		return -ENOMEM;
	}
	dma_resv_lock(buf->resv, NULL);
	if (b->pinned || (b->kind == EXPORTER_PINS_IN_ATTACH && b->attached)) {
		error = -EBUSY;
	} else if (b->left_count + b->count > b->max_left) {
		error = -ENOSPC;
	} else {
		for (unsigned int i = 0; i < b->count; i++) {
			copy_highpage(pages[i], b->pages[i]);
			memset(page_address(b->pages[i]), EXPORTER_POISON, PAGE_SIZE);
			b->left[b->left_count++] = b->pages[i];
		}
		/* Frees the array, not the pages in it. */
		kvfree(b->pages);
		b->pages = pages;
		pages = NULL;
		dma_buf_invalidate_mappings(buf);
	}
	dma_resv_unlock(buf->resv);
	if (pages)
		free_pages_of(pages, b->count);
	dma_buf_put(buf);
	return error;
}

static long exporter_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	switch (command) {
	case EXPORTER_MAKE:
		return make((void __user *)argument);
	case EXPORTER_LOOK:
		return look((void __user *)argument);
	case EXPORTER_EVICT:
		return evict(argument);
	}
	return -ENOTTY;
}

static const struct file_operations exporter_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = exporter_ioctl,
};

static struct miscdevice exporter = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "dmabuf_exporter",
	.fops = &exporter_fops,
};
module_misc_device(exporter);

MODULE_DESCRIPTION("dma-bufs that move, for the tests of riwarp");
MODULE_IMPORT_NS("DMA_BUF");
MODULE_LICENSE("GPL");
