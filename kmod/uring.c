// SPDX-License-Identifier: GPL-2.0-only
/*
 * FETCH, COMMIT and SUBMIT as commands of io_uring.
 *
 * A command begins and is cancelled under the lock of its own ring. It never is
 * completed where the other side says that it can be, under the lock of the
 * other's ring maybe, but by work of the task that submitted it. That work
 * finds out once more what there is to say: meanwhile the queue may have been
 * parked, or ended.
 *
 * Whoever takes a command from its tag or request, under moe_lock, sees to it
 * that it is completed; nobody else does. So it is completed once.
 *
 * That work has the ring's lock from about Linux 6.10 on. Before, it may run
 * beside a cancel, which has that lock and waits for moe_lock. So it clears in
 * the command what it lets go of, with moe_lock held, and a cancel that finds
 * nothing leaves. The command itself is there until the cancel has left: it
 * gets out of the ring's list of what can be cancelled with the ring's lock.
 */
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "queue.h"
#include "trace.h"

/**
 * struct moe_pdu - what a command that waits is about
 * @queue: of a FETCH, with a reference; NULL once that is gone
 * @request: of a SUBMIT; NULL once it is told
 * @to: of a FETCH
 * @tag: of a FETCH
 * @turn: of the tag, when it has got a request
 */
struct moe_pdu {
	struct moe_queue *queue;
	struct moe_request *request;
	u64 to;
	u32 tag;
	u32 turn;
};

static struct moe_pdu *pdu_of(struct io_uring_cmd *cmd)
{
	BUILD_BUG_ON(sizeof(struct moe_pdu) > sizeof(cmd->pdu));
	return (struct moe_pdu *)cmd->pdu;
}

static void put_queue(struct moe_pdu *pdu)
{
	mutex_lock(&moe_lock);
	moe_queue_put(pdu->queue);
	pdu->queue = NULL;
	moe_unlock();
}

static void told(struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	struct moe_pdu *pdu = pdu_of(cmd);
	long ret = moe_queue_tell(cmd->file, pdu->queue, pdu->tag, pdu->turn,
				  pdu->to);

	put_queue(pdu);
	moe_uring_done(cmd, ret, 0, issue_flags);
}

MOE_URING_WORK(told)

static void cancelled(struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	put_queue(pdu_of(cmd));
	moe_uring_done(cmd, -ECANCELED, 0, issue_flags);
}

MOE_URING_WORK(cancelled)

/* False: the client has named a place that there is not. */
static bool hand_over(const struct moe_request *request, const struct moe_kmod_answer *answer)
{
	void __user *to = u64_to_user_ptr(request->to);

	if (!to)
		return true;
	return current->mm && !copy_to_user(to, answer, sizeof(*answer));
}

static void answered(struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	struct moe_pdu *pdu = pdu_of(cmd);
	struct moe_request *request = pdu->request;
	const struct moe_kmod_answer answer = request->answer;
	const bool stays = request->body.flags & MOE_KMOD_REQUEST_STAYS;
	long ret = answer.status;
	bool told = true;

	if (stays && !current->mm) {
		told = false; /* its thread has ended */
		ret = -ECANCELED;
	} else if (!hand_over(request, &answer)) {
		ret = -EFAULT;
	}
	mutex_lock(&moe_lock);
	pdu->request = NULL;
	moe_request_told(request, told);
	moe_unlock();
	moe_uring_done(cmd, ret, answer.bytes, issue_flags);
}

MOE_URING_WORK(answered)

void moe_uring_fetch(struct io_uring_cmd *cmd, struct moe_queue *queue, u32 tag,
		     u64 to)
{
	*pdu_of(cmd) = (struct moe_pdu){ .queue = queue, .tag = tag, .to = to };
}

void moe_uring_submit(struct io_uring_cmd *cmd, struct moe_request *request)
{
	*pdu_of(cmd) = (struct moe_pdu){ .request = request };
}

void moe_uring_tell(struct io_uring_cmd *cmd, u32 turn)
{
	pdu_of(cmd)->turn = turn;
	io_uring_cmd_complete_in_task(cmd, told_in_task);
}

void moe_uring_cancel(struct io_uring_cmd *cmd)
{
	io_uring_cmd_complete_in_task(cmd, cancelled_in_task);
}

void moe_uring_answer(struct moe_request *request)
{
	struct io_uring_cmd *cmd = request->cmd;

	request->cmd = NULL;
	io_uring_cmd_complete_in_task(cmd, answered_in_task);
}

/* With moe_lock held: takes it from its tag, unless it is on its way already. */
static bool take_fetch(struct io_uring_cmd *cmd, struct moe_pdu *pdu)
{
	struct moe_tag *tag = &pdu->queue->tags[pdu->tag];

	if (tag->state != MOE_TAG_FETCHES || tag->cmd != cmd)
		return false;
	list_del_init(&tag->in);
	tag->cmd = NULL;
	tag->state = MOE_TAG_FREE;
	moe_queue_put(pdu->queue);
	return true;
}

static bool take_submit(struct io_uring_cmd *cmd, struct moe_pdu *pdu)
{
	if (pdu->request->cmd != cmd)
		return false;
	pdu->request->cmd = NULL;
	trace_moe_request_cancel(pdu->request, 0);
	/* The end of a ring is work of the kernel, that of a task its own. */
	if (!(pdu->request->body.flags & MOE_KMOD_REQUEST_STAYS) || !current->mm)
		moe_request_drop(pdu->request);
	return true;
}

static void cancel(struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	struct moe_pdu *pdu = pdu_of(cmd);
	bool taken = false;

	mutex_lock(&moe_lock);
	if (pdu->request)
		taken = take_submit(cmd, pdu);
	else if (pdu->queue)
		taken = take_fetch(cmd, pdu);
	moe_unlock();
	if (taken) {
		moe_event_wake();
		moe_uring_done(cmd, -ECANCELED, 0, issue_flags);
	} else if (!current->mm) {
		/*
		 * Its task may be stopped, and the kernel's worker, for a ring
		 * that ends, asks again without a pause.
		 */
		usleep_range(100, 200);
	}
}

/* 0: it waits. */
static long begin(struct moe_call *call, struct io_uring_cmd *cmd, bool *waits)
{
	const u64 to = READ_ONCE(cmd->sqe->addr);

	*waits = true;
	if (cmd->cmd_op == MOE_KMOD_SUBMIT)
		return moe_request_submit(call, cmd, to);
	if (to)
		return -EINVAL;
	if (!moe_is_keeper(call->file))
		return -EPERM;
	if (cmd->cmd_op == MOE_KMOD_FETCH)
		return moe_queue_fetch(call, cmd);
	if (cmd->cmd_op == MOE_KMOD_COMMIT) {
		*waits = false;
		return moe_queue_ioctl_commit(call);
	}
	return moe_queue_commit(call, cmd);
}

static bool is_known(u32 op)
{
	return op == MOE_KMOD_FETCH || op == MOE_KMOD_COMMIT ||
	       op == MOE_KMOD_COMMIT_AND_FETCH || op == MOE_KMOD_SUBMIT;
}

/*
 * The ring's lock is held from here to the end, so that the command cannot be
 * completed before it is marked; in a thread of io-wq it would not be. Nor is
 * one of SQPOLL heard: it is of the process that made the ring and has that
 * process's rights of then, whoever by now fills the ring.
 */
int moe_uring(struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	struct moe_call call = { .client = cmd->file->private_data, .file = cmd->file };
	bool waits = true;
	long ret;

	BUILD_BUG_ON(sizeof(call.arg.tag) != MOE_URING_BYTES ||
		     sizeof(call.arg.request) != MOE_URING_BYTES);
	if (issue_flags & IO_URING_F_CANCEL) {
		cancel(cmd, issue_flags);
		return 0;
	}
	if (!is_known(cmd->cmd_op))
		return -ENOTTY;
	if (issue_flags & IO_URING_F_UNLOCKED || current->flags & PF_IO_WORKER)
		return -EOPNOTSUPP;
	if (!(issue_flags & IO_URING_F_SQE128) || READ_ONCE(cmd->sqe->len) ||
	    cmd->flags & MOE_URING_USER_FLAGS)
		return -EINVAL;
	call.closes = READ_ONCE(call.client->closes);
	memcpy(&call.arg, moe_uring_bytes(cmd), MOE_URING_BYTES);
	barrier(); /* what is checked is the copy */
	ret = moe_is_mine(call.client) ? begin(&call, cmd, &waits) : -EPERM;
	if (ret)
		trace_moe_refused(call.client, _IOC_NR(cmd->cmd_op), ret);
	if (ret || !waits)
		return ret;
	io_uring_cmd_mark_cancelable(cmd, issue_flags);
	return -EIOCBQUEUED;
}
