// SPDX-License-Identifier: GPL-2.0

#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/notifier.h>
#include <linux/string.h>

/*
 * The kernel exports no find_module(). Loaded modules are objects of one set,
 * this one too.
 */
bool riwarp_helper_has_module(const char *name);
bool riwarp_helper_has_module(const char *name)
{
	struct kobject *module = kset_find_obj(THIS_MODULE->mkobj.kobj.kset, name);

	kobject_put(module);
	return module;
}

int riwarp_helper_refuse_module(unsigned long event, const struct module *module,
				const char *name);
int riwarp_helper_refuse_module(unsigned long event, const struct module *module,
				const char *name)
{
	if (event != MODULE_STATE_COMING || strcmp(module->name, name))
		return NOTIFY_DONE;
	return notifier_from_errno(-EBUSY);
}
