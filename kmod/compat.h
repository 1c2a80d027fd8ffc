/* SPDX-License-Identifier: GPL-2.0-only */
/* What kernels from 6.1 on call differently; Kbuild asks their headers. */
#ifndef MOE_COMPAT_H
#define MOE_COMPAT_H

#include <linux/mm.h>
#include <linux/mmap_lock.h>

#ifndef MOE_HAVE_VM_FLAGS_CLEAR
static inline void vm_flags_clear(struct vm_area_struct *vma, vm_flags_t flags)
{
	mmap_assert_write_locked(vma->vm_mm);
	vma->vm_flags &= ~flags;
}
#endif

#endif
