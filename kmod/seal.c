// SPDX-License-Identifier: GPL-2.0-only
/*
 * Register, then seal: a lease that is mapped writable, until it is sealed.
 *
 * The mapping is the hugetlb file's own, made in the client by vm_mmap: a
 * mapping of this device could have no huge pages that drivers can pin. Its
 * file is opened for this lease alone and given to nobody, so all that refers
 * to it is the lease and the mappings that came of MAP, wherever mremap, a
 * split or fork put them: what the client has of them is counted, and a
 * reference more is another process's.
 *
 * A sealed mapping has the flags of a shared mapping of a descriptor that can
 * only be read, which every path of the kernel knows: neither VM_MAYWRITE,
 * without which nothing makes it writable, nor VM_SHARED, without which
 * remap_file_pages does not map its writable file anew. With them goes its
 * part of i_mmap_writable, or the file could never be sealed; which of the two
 * is counted differs between kernels, so both go at once.
 *
 * There is no way to take a mapping away from a client that lives: on hugetlb,
 * unmap_mapping_range waits for a lock that it holds, and what was unmapped so
 * would be back at the next access.
 */
#include <linux/err.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mman.h>
#include <linux/sched/mm.h>
#include <linux/userfaultfd_k.h>

#include "compat.h"
#include "moe_expert.h"
#include "trace.h"

#define WRITABLE (VM_SHARED | VM_MAYWRITE)

bool moe_seal_is_open(const struct moe_lease *lease)
{
	lockdep_assert_held(&moe_lock);
	return lease->map && !(lease->state & MOE_KMOD_LEASE_SEALED) &&
	       file_count(lease->map) > 1;
}

/* The client's lease, if it can be mapped. */
static struct moe_lease *mappable(struct moe_client *client, u64 id)
{
	struct moe_lease *lease = moe_lease_find(client, id);
	u64 part;

	if (!lease)
		return ERR_PTR(-ENOENT);
	if (!(lease->pool->flags & MOE_KMOD_POOL_MAP))
		return ERR_PTR(-EPERM);
	if (lease->map)
		return ERR_PTR(-EEXIST);
	part = (1ull << lease->pool->page_shift) - 1;
	if ((lease->offset | lease->bytes) & part)
		return ERR_PTR(-EINVAL);
	return lease;
}

/* A file of the lease's pool, opened without moe_lock: who watches files may make an open wait. */
static struct file *open_for(struct moe_client *client, u64 id)
{
	struct moe_lease *lease;
	struct moe_pool *pool;
	struct file *file;

	mutex_lock(&moe_lock);
	lease = mappable(client, id);
	pool = IS_ERR(lease) ? ERR_CAST(lease) : lease->pool;
	if (!IS_ERR(pool))
		pool->refs++;
	moe_unlock();
	if (IS_ERR(pool))
		return ERR_CAST(pool);
	file = moe_pool_open(pool, O_RDWR);
	mutex_lock(&moe_lock);
	moe_pool_put(pool);
	moe_unlock();
	return file;
}

/* Looked at again: another thread may have mapped or dropped it. An id is never given twice. */
static long begin(struct moe_call *call, struct file *file, u64 *offset)
{
	struct moe_kmod_map *arg = &call->arg.map;
	struct moe_lease *lease;

	mutex_lock(&moe_lock);
	lease = mappable(call->client, arg->lease);
	if (!IS_ERR(lease)) {
		lease->map = get_file(file);
		lease->state |= MOE_KMOD_LEASE_MAPPED;
		arg->bytes = lease->bytes;
		*offset = lease->offset;
	}
	moe_unlock();
	return PTR_ERR_OR_ZERO(lease);
}

/*
 * With the mapping, or the error of making it, at @at. Another thread may have
 * ended the lease meanwhile, and copied what it saw of the mapping: so a lease
 * ends as one that was mapped from begin() on.
 */
static long finish(struct moe_call *call, struct file *file, unsigned long at)
{
	struct moe_kmod_map *arg = &call->arg.map;
	struct moe_lease *lease;
	long ret = 0;

	mutex_lock(&moe_lock);
	lease = moe_lease_find(call->client, arg->lease);
	if (!lease) {
		ret = -EBADF;
	} else if (IS_ERR_VALUE(at)) {
		fput(lease->map);
		lease->map = NULL;
		lease->state = 0;
		ret = (long)at;
	} else {
		arg->address = at;
		trace_moe_map(lease);
	}
	moe_unlock();
	if (ret && !IS_ERR_VALUE(at))
		vm_munmap(at, arg->bytes);
	fput(file);
	return ret;
}

long moe_seal_map(struct moe_call *call)
{
	struct moe_kmod_map *arg = &call->arg.map;
	struct file *file;
	u64 offset;
	long ret;

	if (arg->reserved)
		return -EINVAL;
	file = open_for(call->client, arg->lease);
	if (IS_ERR(file))
		return PTR_ERR(file);
	ret = begin(call, file, &offset);
	if (ret) {
		fput(file);
		return ret;
	}
	return finish(call, file, vm_mmap(file, 0, arg->bytes, PROT_READ | PROT_WRITE,
					  MAP_SHARED, offset));
}

/* Nobody was told where it is. */
void moe_seal_undo(struct moe_call *call)
{
	vm_munmap(call->arg.map.address, call->arg.map.bytes);
}

/* Whether all that refers to @file is its lease, and mappings that cannot write. */
static bool is_quiet(struct mm_struct *mm, struct file *file)
{
	VMA_ITERATOR(vmi, mm, 0);
	struct vm_area_struct *vma;
	long mappings = 0;

	for_each_vma(vmi, vma) {
		if (vma->vm_file != file)
			continue;
		if (vma->vm_flags & VM_WRITE || userfaultfd_armed(vma))
			return false;
		mappings++;
	}
	return file_count(file) == mappings + 1;
}

static void seal(struct mm_struct *mm, struct file *file)
{
	VMA_ITERATOR(vmi, mm, 0);
	struct vm_area_struct *vma;

	for_each_vma(vmi, vma) {
		if (vma->vm_file != file || (vma->vm_flags & WRITABLE) != WRITABLE)
			continue;
		vm_flags_clear(vma, WRITABLE);
		mapping_unmap_writable(file->f_mapping);
	}
}

/* Under mmap_lock no thread maps, moves or forks; under moe_lock none ends it. */
long moe_seal(struct moe_call *call)
{
	struct mm_struct *mm = current->mm;
	struct moe_lease *lease;
	long ret = 0;

	if (call->arg.seal.reserved)
		return -EINVAL;
	if (mmap_write_lock_killable(mm))
		return -EINTR;
	mutex_lock(&moe_lock);
	lease = moe_lease_find(call->client, call->arg.seal.lease);
	if (!lease || !lease->map)
		ret = -ENOENT;
	else if (!is_quiet(mm, lease->map))
		ret = -EBUSY;
	if (!ret) {
		seal(mm, lease->map);
		lease->state |= MOE_KMOD_LEASE_SEALED;
		trace_moe_seal(lease);
	}
	mutex_unlock(&moe_lock);
	mmap_write_unlock(mm);
	return ret;
}
