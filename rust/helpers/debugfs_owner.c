// SPDX-License-Identifier: GPL-2.0
/* Helpers of rust/debugfs_owner.rs. */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

/* Implemented in Rust. */
void riwarp_debugfs_write(struct seq_file *file, void *show);

static int riwarp_debugfs_show(struct seq_file *file, void *unused)
{
	riwarp_debugfs_write(file, file->private);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(riwarp_debugfs);

struct dentry *riwarp_helper_debugfs_create_dir(const char *name);
struct dentry *riwarp_helper_debugfs_create_dir(const char *name)
{
	return debugfs_create_dir(name, NULL);
}

void riwarp_helper_debugfs_create_file(const char *name, struct dentry *dir, void *show);
void riwarp_helper_debugfs_create_file(const char *name, struct dentry *dir, void *show)
{
	debugfs_create_file(name, 0400, dir, show, &riwarp_debugfs_fops);
}

void riwarp_helper_debugfs_remove(struct dentry *dir);
void riwarp_helper_debugfs_remove(struct dentry *dir)
{
	debugfs_remove(dir);
}
