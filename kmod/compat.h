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

#ifdef MOE_HAVE_URING
#include <linux/io_uring.h>
#ifdef MOE_HAVE_URING_CMD_H
#include <linux/io_uring/cmd.h>
#endif

#define MOE_URING_BYTES 80 /* of an entry with SQE128 that are the command's */
#define MOE_URING_USER_FLAGS 0x00ffffffu

static inline void moe_uring_done(struct io_uring_cmd *cmd, long ret, u64 word,
				  unsigned int issue_flags)
{
#ifdef MOE_HAVE_URING_DONE32
	if (word)
		io_uring_cmd_done32(cmd, ret, word, issue_flags);
	else
		io_uring_cmd_done(cmd, ret, issue_flags);
#else
	io_uring_cmd_done(cmd, ret, word, issue_flags);
#endif
}

struct moe_uring_words {
	u8 bytes[MOE_URING_BYTES];
};

static inline const void *moe_uring_bytes(struct io_uring_cmd *cmd)
{
#ifdef io_uring_sqe128_cmd
	return io_uring_sqe128_cmd(cmd->sqe, struct moe_uring_words);
#elif defined(MOE_HAVE_URING_SQE_TYPE)
	return io_uring_sqe_cmd(cmd->sqe, struct moe_uring_words);
#else
	return io_uring_sqe_cmd(cmd->sqe);
#endif
}

/* fn, as work of a task: fn_in_task is what io_uring_cmd_complete_in_task takes. */
#ifdef MOE_HAVE_URING_TW_REQ
#define MOE_URING_WORK(fn)                                                    \
	static void fn##_in_task(struct io_tw_req work, io_tw_token_t token)  \
	{                                                                     \
		fn(io_uring_cmd_from_tw(work),                                \
		   IO_URING_CMD_TASK_WORK_ISSUE_FLAGS);                       \
	}
#else
#define MOE_URING_WORK(fn)                                                    \
	static void fn##_in_task(struct io_uring_cmd *cmd, unsigned int flags)\
	{                                                                     \
		fn(cmd, flags);                                               \
	}
#endif
#endif

#endif
