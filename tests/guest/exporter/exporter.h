/* SPDX-License-Identifier: GPL-2.0 */
/* The ioctls of /dev/dmabuf_exporter. */
#ifndef EXPORTER_H
#define EXPORTER_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* The behaviour of a dma-buf. */
enum exporter_kind {
	EXPORTER_PINS_IN_ATTACH,	/* its memory stays while a device is attached */
	EXPORTER_PINS_IN_PIN,		/* ... while it is pinned */
	EXPORTER_ATTACH_FAILS,		/* with ENOTUNIQ */
	EXPORTER_PIN_FAILS,
	EXPORTER_VMAP_FAILS,
	EXPORTER_VMAP_IS_NULL,		/* vmap succeeds and maps nothing */
	EXPORTER_KINDS,
};

struct exporter_make {
	__u64 len;
	__u32 kind;
	__u32 pad;
};

struct exporter_state {
	__s32 fd;
	__u32 attached, pinned, mapped;
};

/* Makes a dma-buf; returns its descriptor. */
#define EXPORTER_MAKE _IOW('x', 1, struct exporter_make)
/* Returns how many importers hold the memory of the dma-buf `fd`. */
#define EXPORTER_LOOK _IOWR('x', 2, struct exporter_state)
/*
 * Moves the memory of the dma-buf whose descriptor is the argument: other pages have the contents
 * from then on, and the old pages have only EXPORTER_POISON. EBUSY if the memory must stay.
 */
#define EXPORTER_EVICT _IO('x', 3)
#define EXPORTER_POISON 0x5a

#endif
