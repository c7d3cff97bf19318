// SPDX-License-Identifier: GPL-2.0
/*
 * Holds the queue on which the iWARP connection manager handles all events, one after the other, as
 * a consumer whose handler sleeps does: from open to close of /dev/iw_cm_queue. The event is that
 * of a connection of this module's own, by a device that is never registered.
 */

#include <linux/completion.h>
#include <linux/err.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>
#include <rdma/iw_cm.h>

struct holder {
	struct ib_device device;
	struct ib_qp qp;
	struct iw_cm_id *id;
	struct completion held, over;
};

static struct ib_qp *get_qp(struct ib_device *device, int qpn)
{
	return &container_of(device, struct holder, device)->qp;
}

static void count_qp(struct ib_qp *qp)
{
}

static int begin(struct iw_cm_id *id, struct iw_cm_conn_param *param)
{
	return 0;
}

/* Runs on the queue. */
static int handle(struct iw_cm_id *id, struct iw_cm_event *event)
{
	struct holder *h = id->context;

	complete(&h->held);
	wait_for_completion(&h->over);
	return 0;
}

static int holder_open(struct inode *inode, struct file *file)
{
	struct iw_cm_event event = { .event = IW_CM_EVENT_CONNECT_REPLY, .status = -ECONNREFUSED };
	struct iw_cm_conn_param param = {};
	struct holder *h = kvzalloc(sizeof(*h), GFP_KERNEL);
	int error;

	if (!h)
		return -ENOMEM;
	init_completion(&h->held);
	init_completion(&h->over);
	h->device.dev.init_name = "iw_cm_queue";
	h->device.ops.iw_get_qp = get_qp;
	h->device.ops.iw_add_ref = count_qp;
	h->device.ops.iw_rem_ref = count_qp;
	h->device.ops.iw_connect = begin;
	h->device.iw_driver_flags = IW_F_NO_PORT_MAP;
	h->id = iw_create_cm_id(&h->device, handle, h);
	if (IS_ERR(h->id)) {
		error = PTR_ERR(h->id);
		goto free;
	}
	error = iw_cm_connect(h->id, &param);
	/* The place for the event is preallocated. */
	if (!error)
		error = h->id->event_handler(h->id, &event);
	if (error) {
		iw_destroy_cm_id(h->id);
		goto free;
	}
	wait_for_completion(&h->held);
	file->private_data = h;
	return 0;
free:
	kvfree(h);
	return error;
}

static int holder_release(struct inode *inode, struct file *file)
{
	struct holder *h = file->private_data;

	complete(&h->over);
	/* Waits for the handler. */
	iw_destroy_cm_id(h->id);
	kvfree(h);
	return 0;
}

static const struct file_operations holder_fops = {
	.owner = THIS_MODULE,
	.open = holder_open,
	.release = holder_release,
};

static struct miscdevice holder = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "iw_cm_queue",
	.fops = &holder_fops,
};
module_misc_device(holder);

MODULE_DESCRIPTION("holds the queue of the iWARP connection manager, for the tests of riwarp");
MODULE_LICENSE("GPL");
