// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pools: memory files of huge pages that the module holds on to.
 *
 * A pool holds the daemon's open file and a pin on each of its huge pages, so
 * that neither the end of every process nor migration takes them away, and a
 * reference to the module, so that it cannot be unloaded. The pins are not
 * charged to RLIMIT_MEMLOCK: huge pages are reserved and never swapped.
 * Ids grow and are never used again, so an id below moe_pool_ids that is not
 * in the list belongs to a pool that was released.
 */
#include <linux/cred.h>
#include <linux/dcache.h>
#include <linux/err.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/hugetlb.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "moe_expert.h"
#include "trace.h"

static LIST_HEAD(moe_pools);
static u64 moe_pool_ids = 1; /* the next one */

struct moe_pool *moe_pool_find(u64 id)
{
	struct moe_pool *pool;

	lockdep_assert_held(&moe_lock);
	list_for_each_entry(pool, &moe_pools, list) {
		if (pool->id == id)
			return pool;
	}
	return ERR_PTR(id && id < moe_pool_ids ? -ESTALE : -ENOENT);
}

void moe_pool_put(struct moe_pool *pool)
{
	lockdep_assert_held(&moe_lock);
	if (--pool->refs)
		return;
	trace_moe_gone(pool);
	moe_counters.pools--;
	moe_counters.pages -= pool->n_pages;
	list_add_tail(&pool->list, &moe_gone);
}

static void free_parts(struct moe_pool *pool)
{
	if (pool->pages)
		unpin_user_pages(pool->pages, pool->n_pages);
	kvfree(pool->pages);
	kvfree(pool->blob);
	if (pool->file)
		fput(pool->file);
	kfree(pool);
}

void moe_pool_free(struct moe_pool *pool)
{
	free_parts(pool);
	module_put(THIS_MODULE);
}

struct file *moe_pool_open(struct moe_pool *pool, int how)
{
	return dentry_open(&pool->file->f_path, how | O_LARGEFILE,
			   current_cred());
}

/* is_file_hugepages() is not for modules. A memfd has no name, so no links. */
static int check_file(struct file *file, u64 bytes)
{
	struct inode *inode = file_inode(file);
	const unsigned int fixed = F_SEAL_SHRINK | F_SEAL_GROW;

	if (inode->i_sb->s_magic != HUGETLBFS_MAGIC || inode->i_nlink)
		return -EMEDIUMTYPE;
	if ((HUGETLBFS_I(inode)->seals & fixed) != fixed)
		return -EPERM;
	if (inode->i_mode & 0022)
		return -EACCES;
	if (!bytes || i_size_read(inode) != bytes)
		return -EINVAL;
	/* Made here, they would lie on any node. */
	if ((u64)inode->i_blocks << SECTOR_SHIFT != bytes)
		return -ENODATA;
	return 0;
}

/* Through a mapping that cannot write, which a file with F_SEAL_WRITE allows. */
static int pin_pages_at(struct moe_pool *pool, unsigned long at, unsigned long n)
{
	while (pool->n_pages < n) {
		struct page **page = &pool->pages[pool->n_pages];
		unsigned long address = at + (pool->n_pages << pool->page_shift);
		int ret = pin_user_pages_fast(address, 1, FOLL_LONGTERM, page);

		if (ret != 1)
			return ret < 0 ? ret : -EFAULT;
		pool->n_pages++;
		/* Another thread of the caller may have mapped what it likes. */
		if (page_folio(*page)->mapping != pool->file->f_mapping)
			return -EFAULT;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

static int pin_pages(struct moe_pool *pool)
{
	unsigned long n = pool->bytes >> pool->page_shift, at;
	struct file *file;
	int ret;

	pool->pages = kvcalloc(n, sizeof(*pool->pages), GFP_KERNEL_ACCOUNT);
	if (!pool->pages)
		return -ENOMEM;
	file = moe_pool_open(pool, O_RDONLY);
	if (IS_ERR(file))
		return PTR_ERR(file);
	at = vm_mmap(file, 0, pool->bytes, PROT_READ, MAP_SHARED, 0);
	ret = IS_ERR_VALUE(at) ? (int)at : pin_pages_at(pool, at, n);
	if (!IS_ERR_VALUE(at))
		vm_munmap(at, pool->bytes);
	fput(file);
	return ret;
}

static int copy_blob(struct moe_pool *pool, const struct moe_kmod_adopt *a)
{
	if (!a->blob_bytes)
		return 0;
	pool->blob = kvmalloc(a->blob_bytes, GFP_KERNEL_ACCOUNT);
	if (!pool->blob)
		return -ENOMEM;
	pool->blob_bytes = a->blob_bytes;
	return copy_from_user(pool->blob, u64_to_user_ptr(a->blob),
			      a->blob_bytes) ? -EFAULT : 0;
}

/* Into the list, unless there are too many or the file is there already. */
static int add(struct moe_pool *pool, u64 *id)
{
	struct moe_pool *p;
	int ret = 0;

	mutex_lock(&moe_lock);
	list_for_each_entry(p, &moe_pools, list) {
		if (file_inode(p->file) == file_inode(pool->file))
			ret = -EEXIST;
	}
	if (!ret && moe_counters.pools >= MOE_KMOD_POOLS_MAX)
		ret = -EMFILE;
	if (!ret) {
		__module_get(THIS_MODULE);
		pool->refs = 1;
		pool->id = moe_pool_ids++;
		*id = pool->id;
		list_add_tail(&pool->list, &moe_pools);
		moe_counters.pools++;
		moe_counters.adopted++;
		trace_moe_adopt(pool);
		moe_counters.pages += pool->n_pages;
	}
	moe_unlock();
	return ret;
}

static bool is_sound(const struct moe_kmod_adopt *a)
{
	const u32 known = MOE_KMOD_POOL_MAP | MOE_KMOD_POOL_DMABUF;
	size_t length = strnlen(a->name, sizeof(a->name));

	return a->epoch && !(a->flags & ~known) && a->node >= -1 && length &&
	       length < sizeof(a->name) &&
	       !memchr_inv(a->name + length, 0, sizeof(a->name) - length);
}

long moe_pool_adopt(struct moe_call *call)
{
	struct moe_kmod_adopt *a = &call->arg.adopt;
	struct moe_pool *pool;
	int ret;

	if (!is_sound(a))
		return -EINVAL;
	if (a->blob_bytes > MOE_KMOD_BLOB_MAX)
		return -EFBIG;
	pool = kzalloc(sizeof(*pool), GFP_KERNEL_ACCOUNT);
	if (!pool)
		return -ENOMEM;
	pool->epoch = a->epoch;
	pool->bytes = a->bytes;
	pool->node = a->node;
	pool->flags = a->flags;
	pool->owner = current_fsuid();
	memcpy(pool->name, a->name, sizeof(pool->name));
	ret = -EBADF;
	pool->file = fget(a->fd);
	if (!pool->file)
		goto free;
	ret = check_file(pool->file, a->bytes);
	if (ret)
		goto free;
	pool->page_shift = ilog2(huge_page_size(hstate_file(pool->file)));
	ret = copy_blob(pool, a);
	if (ret)
		goto free;
	ret = pin_pages(pool);
	if (ret)
		goto free;
	ret = add(pool, &a->id);
	if (ret)
		goto free;
	return 0;
free:
	free_parts(pool);
	return ret;
}

/* Unless somebody has listed it and let go of it in the meantime. */
void moe_pool_undo(struct moe_call *call)
{
	struct moe_pool *pool;

	mutex_lock(&moe_lock);
	pool = moe_pool_find(call->arg.adopt.id);
	if (!IS_ERR(pool)) {
		list_del(&pool->list);
		moe_pool_put(pool);
	}
	moe_unlock();
}

long moe_pool_next(struct moe_call *call)
{
	struct moe_kmod_pool *out = &call->arg.pool;
	struct moe_pool *pool;
	long ret = -ENOENT;

	if (out->flags || out->reserved)
		return -EINVAL;
	mutex_lock(&moe_lock);
	list_for_each_entry(pool, &moe_pools, list) {
		if (pool->id <= out->id)
			continue;
		*out = (struct moe_kmod_pool){
			.id = pool->id,
			.epoch = pool->epoch,
			.bytes = pool->bytes,
			.page_bytes = 1ull << pool->page_shift,
			.blob_bytes = pool->blob_bytes,
			.leases = pool->leases,
			.owner = from_kuid_munged(current_user_ns(), pool->owner),
			.node = pool->node,
			.flags = pool->flags,
		};
		memcpy(out->name, pool->name, sizeof(out->name));
		ret = 0;
		break;
	}
	moe_unlock();
	return ret;
}

/* With moe_lock held: a pool that this keeper may use as its own. */
static struct moe_pool *find_own(u64 id)
{
	struct moe_pool *pool = moe_pool_find(id);

	if (!IS_ERR(pool) && !uid_eq(pool->owner, current_fsuid()) &&
	    !capable(CAP_SYS_ADMIN))
		return ERR_PTR(-EPERM);
	return pool;
}

long moe_pool_take(struct moe_call *call)
{
	struct moe_kmod_take *t = &call->arg.take;
	struct moe_pool *pool;
	long ret = 0;

	mutex_lock(&moe_lock);
	pool = find_own(t->id);
	if (!IS_ERR(pool))
		pool->refs++;
	moe_unlock();
	if (IS_ERR(pool))
		return PTR_ERR(pool);
	if (t->blob_bytes && t->blob_bytes < pool->blob_bytes)
		ret = -ENOSPC;
	else if (t->blob_bytes && pool->blob_bytes &&
		 copy_to_user(u64_to_user_ptr(t->blob), pool->blob, pool->blob_bytes))
		ret = -EFAULT;
	t->blob_bytes = pool->blob_bytes;
	if (!ret) {
		t->fd = moe_give(call, get_file(pool->file));
		ret = t->fd < 0 ? t->fd : 0;
	}
	mutex_lock(&moe_lock);
	if (!ret)
		trace_moe_take(pool);
	moe_pool_put(pool);
	moe_unlock();
	return ret;
}

long moe_pool_release(struct moe_call *call)
{
	struct moe_pool *pool;

	if (call->arg.release.reserved)
		return -EINVAL;
	mutex_lock(&moe_lock);
	pool = find_own(call->arg.release.id);
	if (!IS_ERR(pool)) {
		trace_moe_release(pool);
		list_del(&pool->list);
		moe_pool_put(pool);
	}
	moe_unlock();
	return PTR_ERR_OR_ZERO(pool);
}

long moe_pool_epoch(struct moe_call *call)
{
	struct moe_pool *pool;
	long ret;

	mutex_lock(&moe_lock);
	pool = find_own(call->arg.epoch.id);
	ret = PTR_ERR_OR_ZERO(pool);
	if (!ret && call->arg.epoch.epoch <= pool->epoch)
		ret = -EINVAL;
	if (!ret) {
		pool->epoch = call->arg.epoch.epoch;
		trace_moe_epoch(pool);
	}
	moe_unlock();
	return ret;
}
