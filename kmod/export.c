// SPDX-License-Identifier: GPL-2.0-only
/*
 * Exports: the range of a lease as a dma-buf, for devices that read it where
 * it lies. One scatter entry is one huge page.
 *
 * It is for reading: its descriptor maps for reading only, the CPU is refused
 * an access to write, and pages are mapped for the device as DMA_TO_DEVICE
 * whatever the importer asks, since many ask for both ways and only read; so
 * where an IOMMU translates, a device that writes is stopped by it. Where none
 * does, nothing stops a device, and that is why the keeper must allow exports.
 *
 * When its lease ends nothing is attached or mapped any more; what a device or
 * a process has mapped stays until it lets go. So a dma-buf holds its pool for
 * its lease, and from then on only as long as it is mapped: a descriptor that
 * lies about holds nothing.
 *
 * Locks: importers call with their reservation lock, and processes with their
 * mmap_lock, inside of which moe_lock is never taken; the end of a lease is
 * read without, and a last mapping lets go of the pool by work.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/err.h>
#include <linux/fcntl.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/refcount.h>
#include <linux/scatterlist.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "compat.h"
#include "moe_expert.h"
#include "trace.h"

#ifdef MOE_HAVE_STRING_NAMESPACES
MODULE_IMPORT_NS("DMA_BUF");
#else
MODULE_IMPORT_NS(DMA_BUF);
#endif

/**
 * struct moe_export - what a dma-buf shows
 * @by_lease: in its lease's exports, in no list once that has ended
 * @pool: that it holds as long as it has @uses
 * @offset: of the lease
 * @bytes: of the lease
 * @uses: one for the lease until that has ended, one for each mapping
 * @unused: lets go of @pool when a mapping was the last use
 * @ended: whether the lease has
 */
struct moe_export {
	struct list_head by_lease;
	struct moe_pool *pool;
	u64 offset;
	u64 bytes;
	refcount_t uses;
	struct work_struct unused;
	bool ended;
};

static void let_go(struct moe_export *export)
{
	if (refcount_dec_and_test(&export->uses))
		schedule_work(&export->unused);
}

/* For one mapping more, unless the lease has ended. */
static bool hold(struct moe_export *export)
{
	if (!refcount_inc_not_zero(&export->uses))
		return false;
	if (!READ_ONCE(export->ended))
		return true;
	let_go(export);
	return false;
}

static void export_unused(struct work_struct *unused)
{
	struct moe_export *export =
		container_of(unused, struct moe_export, unused);

	mutex_lock(&moe_lock);
	moe_pool_put(export->pool);
	moe_unlock();
}

/* With moe_lock held: its lease's end, or its own before that. */
static void end(struct moe_export *export)
{
	WRITE_ONCE(export->ended, true);
	list_del_init(&export->by_lease);
	if (refcount_dec_and_test(&export->uses))
		moe_pool_put(export->pool);
}

void moe_export_end(struct moe_lease *lease)
{
	struct moe_export *export, *next;

	lockdep_assert_held(&moe_lock);
	list_for_each_entry_safe(export, next, &lease->exports, by_lease)
		end(export);
}

/* The page of a byte of the pool, and how many bytes of its huge page follow. */
static struct page *page_at(const struct moe_pool *pool, u64 at, u32 *inside, u64 *rest)
{
	const u64 bytes = 1ull << pool->page_shift;

	*inside = at & (bytes - 1);
	*rest = bytes - *inside;
	return pool->pages[at >> pool->page_shift];
}

static unsigned int entries_of(const struct moe_export *export)
{
	const unsigned int shift = export->pool->page_shift;

	return ((export->offset + export->bytes - 1) >> shift) -
	       (export->offset >> shift) + 1;
}

static int export_attach(struct dma_buf *buf, struct dma_buf_attachment *to)
{
	const struct moe_export *export = buf->priv;

	return READ_ONCE(export->ended) ? -ESTALE : 0;
}

static void fill(const struct moe_export *export, struct sg_table *table)
{
	u64 at = export->offset, left = export->bytes, rest;
	struct scatterlist *entry;
	struct page *page;
	unsigned int i;
	u32 inside;

	for_each_sgtable_sg(table, entry, i) {
		page = page_at(export->pool, at, &inside, &rest);
		rest = min(rest, left);
		sg_set_page(entry, page, rest, inside);
		at += rest;
		left -= rest;
	}
}

static struct sg_table *export_map(struct dma_buf_attachment *to,
				   enum dma_data_direction direction)
{
	struct moe_export *export = to->dmabuf->priv;
	struct sg_table *table;
	int ret = -ENOMEM;

	if (direction == DMA_FROM_DEVICE)
		return ERR_PTR(-EACCES);
	if (!hold(export))
		return ERR_PTR(-ESTALE);
	table = kzalloc(sizeof(*table), GFP_KERNEL);
	if (!table)
		goto put;
	ret = sg_alloc_table(table, entries_of(export), GFP_KERNEL);
	if (ret)
		goto free;
	fill(export, table);
	ret = dma_map_sgtable(to->dev, table, DMA_TO_DEVICE, 0);
	if (!ret)
		return table;
	sg_free_table(table);
free:
	kfree(table);
put:
	let_go(export);
	return ERR_PTR(ret);
}

static void export_unmap(struct dma_buf_attachment *from, struct sg_table *table,
			 enum dma_data_direction direction)
{
	dma_unmap_sgtable(from->dev, table, DMA_TO_DEVICE, 0);
	sg_free_table(table);
	kfree(table);
	let_go(from->dmabuf->priv);
}

/* DMA_FROM_DEVICE is a CPU that reads what a device wrote. */
static int export_begin(struct dma_buf *buf, enum dma_data_direction direction)
{
	return direction == DMA_FROM_DEVICE ? 0 : -EACCES;
}

/* By a fork, or a part that is its own now: after the lease's end, too. */
static void export_open(struct vm_area_struct *vma)
{
	struct moe_export *export = vma->vm_private_data;

	refcount_inc(&export->uses);
}

static void export_close(struct vm_area_struct *vma)
{
	let_go(vma->vm_private_data);
}

static const struct vm_operations_struct export_vm_ops = {
	.open = export_open,
	.close = export_close,
};

static int map_pages(const struct moe_export *export,
		     struct vm_area_struct *vma)
{
	u64 at = export->offset + ((u64)vma->vm_pgoff << PAGE_SHIFT), rest;
	unsigned long address = vma->vm_start;
	struct page *page;
	int ret = 0;
	u32 inside;

	while (!ret && address < vma->vm_end) {
		page = page_at(export->pool, at, &inside, &rest);
		rest = min_t(u64, rest, vma->vm_end - address);
		ret = remap_pfn_range(vma, address,
				      page_to_pfn(page) + (inside >> PAGE_SHIFT),
				      rest, vma->vm_page_prot);
		at += rest;
		address += rest;
		/* The memory type of each small page is looked up. */
		if (fatal_signal_pending(current))
			ret = -EINTR;
		cond_resched();
	}
	return ret;
}

static int export_mmap(struct dma_buf *buf, struct vm_area_struct *vma)
{
	struct moe_export *export = buf->priv;
	int ret;

	if (vma->vm_flags & VM_WRITE)
		return -EACCES;
	if (!hold(export))
		return -ESTALE;
	vm_flags_clear(vma, VM_MAYWRITE);
	ret = map_pages(export, vma);
	if (ret) {
		/* Other threads see what it has before the kernel unmaps it. */
		zap_vma_ptes(vma, vma->vm_start, vma->vm_end - vma->vm_start);
		let_go(export);
		return ret;
	}
	vma->vm_private_data = export;
	vma->vm_ops = &export_vm_ops;
	return 0;
}

/* Nothing has it mapped any more. */
static void export_free(struct moe_export *export)
{
	mutex_lock(&moe_lock);
	if (!export->ended)
		end(export);
	moe_counters.exports--;
	moe_unlock();
	flush_work(&export->unused);
	kfree(export);
}

static void export_release(struct dma_buf *buf)
{
	export_free(buf->priv);
}

static const struct dma_buf_ops export_ops = {
	.attach = export_attach,
	.map_dma_buf = export_map,
	.unmap_dma_buf = export_unmap,
	.begin_cpu_access = export_begin,
	.mmap = export_mmap,
	.release = export_release,
};

/* With moe_lock held. */
static long begin(struct moe_lease *lease, struct moe_export *export)
{
	struct moe_pool *pool = lease->pool;

	if (!(pool->flags & MOE_KMOD_POOL_DMABUF))
		return -EPERM;
	if ((lease->offset | lease->bytes) & ~PAGE_MASK)
		return -EINVAL;
	export->pool = pool;
	export->offset = lease->offset;
	export->bytes = lease->bytes;
	refcount_set(&export->uses, 1);
	INIT_WORK(&export->unused, export_unused);
	pool->refs++;
	moe_counters.exports++;
	list_add_tail(&export->by_lease, &lease->exports);
	trace_moe_export(lease);
	return 0;
}

long moe_export(struct moe_call *call)
{
	struct moe_kmod_dmabuf *arg = &call->arg.dmabuf;
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct moe_export *export;
	struct moe_lease *lease;
	struct dma_buf *buf;
	long ret;

	if (arg->reserved)
		return -EINVAL;
	export = kzalloc(sizeof(*export), GFP_KERNEL_ACCOUNT);
	if (!export)
		return -ENOMEM;
	mutex_lock(&moe_lock);
	lease = moe_lease_find(call->client, arg->lease);
	ret = lease ? begin(lease, export) : -ENOENT;
	moe_unlock();
	if (ret) {
		kfree(export);
		return ret;
	}
	info.ops = &export_ops;
	info.size = export->bytes;
	info.flags = O_RDONLY;
	info.priv = export;
	buf = dma_buf_export(&info);
	if (IS_ERR(buf)) {
		export_free(export);
		return PTR_ERR(buf);
	}
	arg->fd = moe_give(call, buf->file);
	return min(arg->fd, 0);
}
