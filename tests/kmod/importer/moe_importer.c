// SPDX-License-Identifier: MIT
/* moe_importer - attaches and maps dma-bufs for a device that does nothing, and sums up what it is shown. */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "importer.h"

struct import {
	struct dma_buf *buf;
	struct dma_buf_attachment *at;
	struct sg_table *table;
	enum dma_data_direction direction;
};

static struct platform_device *device;

static void sum_up(const struct sg_table *table, struct moe_import *said)
{
	struct scatterlist *entry;
	unsigned int i, word;

	said->shortest = -1;
	for_each_sgtable_sg(table, entry, i)
	{
		const u64 *words = page_address(sg_page(entry)) + entry->offset;

		for (word = 0; word < entry->length / 8; word++)
			said->sum += words[word];
		said->shortest = min_t(u32, said->shortest, entry->length);
		said->bytes += entry->length;
		cond_resched();
	}
	said->entries = table->orig_nents;
}

static void let_go(struct import *i)
{
	if (i->table)
		dma_buf_unmap_attachment_unlocked(i->at, i->table, i->direction);
	if (i->at)
		dma_buf_detach(i->buf, i->at);
	if (i->buf)
		dma_buf_put(i->buf);
	*i = (struct import){.buf = NULL};
}

static long import(struct import *i, struct moe_import *said)
{
	void *got = dma_buf_get(said->fd);

	if (IS_ERR(got))
		return PTR_ERR(got);
	i->buf = got;
	i->direction = said->direction;
	got = dma_buf_attach(i->buf, &device->dev);
	i->at = IS_ERR(got) ? NULL : got;
	if (!IS_ERR(got)) {
		got = dma_buf_map_attachment_unlocked(i->at, i->direction);
		i->table = IS_ERR(got) ? NULL : got;
	}
	if (IS_ERR(got)) {
		let_go(i);
		return PTR_ERR(got);
	}
	sum_up(i->table, said);
	return 0;
}

static long importer_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct import *i = file->private_data;
	struct moe_import said;
	long ret;

	if (cmd == MOE_LET_GO)
		let_go(i);
	if (cmd != MOE_IMPORT)
		return cmd == MOE_LET_GO ? 0 : -ENOTTY;
	if (i->buf)
		return -EBUSY;
	if (copy_from_user(&said, (void __user *)arg, sizeof(said)))
		return -EFAULT;
	ret = import(i, &said);
	if (!ret && copy_to_user((void __user *)arg, &said, sizeof(said)))
		ret = -EFAULT;
	return ret;
}

static int importer_open(struct inode *inode, struct file *file)
{
	file->private_data = kzalloc(sizeof(struct import), GFP_KERNEL);
	return file->private_data ? 0 : -ENOMEM;
}

static int importer_release(struct inode *inode, struct file *file)
{
	let_go(file->private_data);
	kfree(file->private_data);
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = importer_open,
	.release = importer_release,
	.unlocked_ioctl = importer_ioctl,
};

static struct miscdevice misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "moe-importer",
	.fops = &operations,
};

static int __init importer_init(void)
{
	int ret;

	device = platform_device_register_simple("moe-importer", -1, NULL, 0);
	if (IS_ERR(device))
		return PTR_ERR(device);
	ret = dma_coerce_mask_and_coherent(&device->dev, DMA_BIT_MASK(64));
	if (!ret)
		ret = misc_register(&misc);
	if (ret)
		platform_device_unregister(device);
	return ret;
}

static void __exit importer_exit(void)
{
	misc_deregister(&misc);
	platform_device_unregister(device);
}

module_init(importer_init);
module_exit(importer_exit);
#ifdef MOE_HAVE_STRING_NAMESPACES
MODULE_IMPORT_NS("DMA_BUF");
#else
MODULE_IMPORT_NS(DMA_BUF);
#endif
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Imports dma-bufs of moe_expert for its tests");
