// SPDX-License-Identifier: GPL-2.0
/*
 * For builds of riwarp that count (RIWARP_COVERAGE in its Kbuild). Adds up the counters of
 * riwarp over all its loads, from the call of its init until after its exit. The file
 * /sys/kernel/debug/collector has them in the raw format of LLVM 19 (InstrProfData.inc there
 * describes it), for llvm-profdata. It must be loaded before riwarp.
 */
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

#define RAW_MAGIC	0xff6c70726f667281ULL	/* "\377lprofr\201" */
#define RAW_VERSION	10

struct raw_header {
	u64 magic, version, binary_ids_size, num_data, padding_before_counters, num_counters;
	u64 padding_after_counters, num_bitmap_bytes, padding_after_bitmap_bytes, names_size;
	u64 counters_delta, bitmap_delta, names_delta, num_vtables, vtable_names_size;
	u64 value_kind_last;
};

/* A record of the section of data. */
struct raw_data {
	u64 name, hash, counters, bitmap, function, values;
	u32 num_counters;
	u16 num_value_sites[3];
	u32 num_bitmap_bytes;
};
static_assert(sizeof(struct raw_data) == 64);

enum { DATA, CNTS, NAMES, SECTIONS };
static const char *const names[SECTIONS] = { "data", "cnts", "names" };

/* Protects all below. */
static DEFINE_MUTEX(lock);
/* The sections of the module that is loaded. */
static struct { void *begin, *end; } sections[SECTIONS];
static struct module *counted;
/* The sum of the counters of those that were. */
static void *sum;
static size_t sum_size;
static struct dentry *file;

static size_t size_of(int i)
{
	return sections[i].end - sections[i].begin;
}

static u64 *counters_in(void *raw)
{
	return raw + sizeof(struct raw_header) + size_of(DATA);
}

/* Finds the sections. All symbols are there until the module's init has returned. */
static bool find_sections(struct module *mod)
{
	struct mod_kallsyms *kallsyms;
	int i, found = 0;
	char name[40];
	unsigned int n;

	rcu_read_lock();
	kallsyms = rcu_dereference(mod->kallsyms);
	for (n = 0; n < kallsyms->num_symtab; n++) {
		const Elf_Sym *sym = &kallsyms->symtab[n];

		for (i = 0; i < SECTIONS; i++) {
			snprintf(name, sizeof(name), "riwarp_prf_%s_begin", names[i]);
			if (!strcmp(kallsyms->strtab + sym->st_name, name)) {
				sections[i].begin = (void *)sym->st_value;
				found++;
			}
			snprintf(name, sizeof(name), "riwarp_prf_%s_end", names[i]);
			if (!strcmp(kallsyms->strtab + sym->st_name, name)) {
				sections[i].end = (void *)sym->st_value;
				found++;
			}
		}
	}
	rcu_read_unlock();
	return found == 2 * SECTIONS;
}

/* The whole of the file, with the counters of the module that is loaded. */
static void *raw_now(size_t *size)
{
	struct raw_header header = {
		.magic = RAW_MAGIC,
		.version = RAW_VERSION,
		.num_data = size_of(DATA) / sizeof(struct raw_data),
		.num_counters = size_of(CNTS) / sizeof(u64),
		.names_size = size_of(NAMES),
		.counters_delta = sections[CNTS].begin - sections[DATA].begin,
		.bitmap_delta = -(u64)sections[DATA].begin,
		.names_delta = (u64)sections[NAMES].begin,
		.value_kind_last = 2,
	};
	void *raw;

	*size = round_up(sizeof(header) + size_of(DATA) + size_of(CNTS) + size_of(NAMES), 8);
	raw = vzalloc(*size);
	if (!raw)
		return NULL;
	memcpy(raw, &header, sizeof(header));
	memcpy(raw + sizeof(header), sections[DATA].begin, size_of(DATA));
	memcpy(counters_in(raw), sections[CNTS].begin, size_of(CNTS));
	memcpy((void *)counters_in(raw) + size_of(CNTS), sections[NAMES].begin, size_of(NAMES));
	return raw;
}

/* The same with the sum of those before, which must have the same sections. */
static void *raw_total(size_t *size)
{
	void *raw = raw_now(size);
	u64 *to, *from;
	size_t i;

	if (!raw || !sum)
		return raw;
	if (*size != sum_size) {
		vfree(raw);
		return NULL;
	}
	to = counters_in(raw);
	from = counters_in(sum);
	for (i = 0; i < size_of(CNTS) / sizeof(u64); i++)
		to[i] += from[i];
	return raw;
}

static int on_module(struct notifier_block *nb, unsigned long state, void *data)
{
	struct module *mod = data;
	size_t size;
	void *raw;

	if (strcmp(mod->name, "riwarp"))
		return NOTIFY_DONE;
	mutex_lock(&lock);
	if (state == MODULE_STATE_COMING) {
		if (find_sections(mod))
			counted = mod;
		else
			pr_err("collector: riwarp does not count\n");
	} else if (state == MODULE_STATE_GOING && counted == mod) {
		raw = raw_total(&size);
		if (raw) {
			vfree(sum);
			sum = raw;
			sum_size = size;
		} else {
			pr_err("collector: counters are lost\n");
		}
		counted = NULL;
	}
	mutex_unlock(&lock);
	return NOTIFY_DONE;
}

static struct notifier_block notifier = { .notifier_call = on_module };

struct snapshot {
	size_t size;
	void *raw;
};

static int file_open(struct inode *inode, struct file *filp)
{
	struct snapshot *snapshot = vzalloc(sizeof(*snapshot));

	if (!snapshot)
		return -ENOMEM;
	mutex_lock(&lock);
	if (counted) {
		snapshot->raw = raw_total(&snapshot->size);
	} else if (sum) {
		snapshot->raw = vmalloc(sum_size);
		snapshot->size = sum_size;
		if (snapshot->raw)
			memcpy(snapshot->raw, sum, sum_size);
	}
	mutex_unlock(&lock);
	if (!snapshot->raw) {
		vfree(snapshot);
		return -ENODATA;
	}
	filp->private_data = snapshot;
	return 0;
}

static ssize_t file_read(struct file *filp, char __user *to, size_t len, loff_t *pos)
{
	struct snapshot *snapshot = filp->private_data;

	return simple_read_from_buffer(to, len, pos, snapshot->raw, snapshot->size);
}

static int file_release(struct inode *inode, struct file *filp)
{
	struct snapshot *snapshot = filp->private_data;

	vfree(snapshot->raw);
	vfree(snapshot);
	return 0;
}

static const struct file_operations file_ops = {
	.owner = THIS_MODULE,
	.open = file_open,
	.read = file_read,
	.release = file_release,
};

static int __init coverage_init(void)
{
	int error = register_module_notifier(&notifier);

	if (!error)
		file = debugfs_create_file("collector", 0400, NULL, NULL, &file_ops);
	return error;
}

static void __exit coverage_exit(void)
{
	debugfs_remove(file);
	unregister_module_notifier(&notifier);
	vfree(sum);
}

module_init(coverage_init);
module_exit(coverage_exit);
MODULE_DESCRIPTION("Adds up riwarp's coverage counters");
MODULE_LICENSE("GPL");
