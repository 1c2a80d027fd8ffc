/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "tests/cuda-sim/sim.h"

static uint64_t lane_free_since[SIM_LANES]; /* 0: never used; the longest free one is taken next */
static uint64_t lane_epoch[SIM_LANES];      /* how far its owners have got */
static uint64_t lane_ends;
static bool lane_used[SIM_LANES] = {true}; /* lane 0 is nobody's */

static uint32_t lane_take(const char *call)
{
	uint32_t i, best = 0;

	for (i = 1; i < SIM_LANES; i++)
		if (!lane_used[i] && (best == 0 || lane_free_since[i] < lane_free_since[best]))
			best = i;
	if (best == 0)
		sim_violation(call, "%d streams at a time are all that this simulation has room for", SIM_LANES - 1);
	lane_used[best] = true;
	return best;
}

void sim_turn_drop(struct sim_turn *turn)
{
	if (turn && --turn->references == 0)
		free(turn);
}

/* -- commands ----------------------------------------------------------------------------------------------------- */

void sim_give(struct sim_stream *stream, const struct sim_command *command)
{
	struct sim_command *c;

	if (stream->capture) {
		sim_capture_add(stream, command, 0);
		return;
	}
	c = malloc(sizeof *c);
	if (!c)
		abort();
	*c = *command;
	c->next = NULL;
	c->since = sim.host;
	c->not_before_ns = sim.delay_ns && sim_random() % 2 ? sim_now() + sim_random() % sim.delay_ns : 0;
	*stream->last = c;
	stream->last = &c->next;
	pthread_cond_signal(&sim.work);
}

struct sim_stream *sim_stream_new(const char *call, int device)
{
	struct sim_stream *s = calloc(1, sizeof *s);

	if (!s)
		abort();
	s->device = device;
	s->lane = lane_take(call);
	s->clock = sim.host;
	s->clock.at[s->lane] = lane_epoch[s->lane]; /* the former owner went before all that the new one does */
	s->last = &s->first;
	s->next = sim.streams;
	sim.streams = s;
	return s;
}

bool sim_stream_idle(const struct sim_stream *stream)
{
	return !stream->first;
}

void sim_stream_forget(struct sim_stream *stream)
{
	struct sim_stream **at = &sim.streams;

	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	lane_used[stream->lane] = false;
	lane_free_since[stream->lane] = ++lane_ends;
	lane_epoch[stream->lane] = stream->clock.at[stream->lane];
	free(stream);
}

/* -- calls -------------------------------------------------------------------------------------------------------- */

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return sim_leave(r);
}

CUresult cuStreamCreateWithPriority(CUstream *ret, unsigned flags, int priority)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		SIM_RULE((flags & ~(unsigned)CU_STREAM_NON_BLOCKING) == 0, "flags %#x", flags);
		SIM_RULE(flags & CU_STREAM_NON_BLOCKING,
			 "a stream that waits for the default stream would wait for other libraries");
		*ret = (CUstream)(uintptr_t)sim_handle_new(SIM_STREAM, sim_stream_new(__func__, sim_current()));
	}
	return sim_leave(r);
}

CUresult cuStreamCreate(CUstream *ret, unsigned flags)
{
	return cuStreamCreateWithPriority(ret, flags, 0);
}

CUresult cuStreamDestroy(CUstream stream)
{
	CUresult r = sim_enter(__func__, SIM_RELEASES);

	if (r == CUDA_SUCCESS) {
		struct sim_stream *s = sim_handle_end(__func__, SIM_STREAM, (uint64_t)(uintptr_t)stream);

		sim_not_captured(__func__, s);
		s->doomed = true;
		if (sim_stream_idle(s))
			sim_stream_forget(s);
	}
	return sim_leave(r);
}

CUresult cuStreamQuery(CUstream stream)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		const struct sim_stream *s = SIM_GET(SIM_STREAM, stream);

		sim_not_captured(__func__, s);
		if (sim_stream_idle(s))
			sim_host_sees(&s->clock);
		else
			r = CUDA_ERROR_NOT_READY;
	}
	return sim_leave(r);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		const struct sim_stream *s = SIM_GET(SIM_STREAM, stream);

		SIM_RULE(context, "a place for the context is needed");
		*context = sim_context_of(s->device);
	}
	return sim_leave(r);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		const struct sim_stream *s = SIM_GET(SIM_STREAM, stream);

		SIM_RULE(status, "a place for the status is needed");
		*status = s->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
	}
	return sim_leave(r);
}

/* Who waits for a stream gives back what it used: only a failed context refuses that. */
CUresult cuStreamSynchronize(CUstream stream)
{
	CUresult r = sim_enter(__func__, SIM_RELEASES);

	if (r == CUDA_SUCCESS) {
		const struct sim_stream *s = SIM_GET(SIM_STREAM, stream);

		sim_not_captured(__func__, s);
		while (!sim_stream_idle(s))
			pthread_cond_wait(&sim.changed, &sim.lock);
		sim_host_sees(&s->clock);
	}
	return sim_leave(r);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		struct sim_stream *s = SIM_GET(SIM_STREAM, stream);
		const struct sim_event *e = SIM_GET(SIM_EVENT, event);
		struct sim_command wait = {
			.op = SIM_WAIT_EVENT,
			.call = __func__,
			.dropped = sim_mutant_drops(__func__, __builtin_return_address(0), __builtin_return_address(1)),
		};

		SIM_RULE(flags == 0, "flags must be 0");
		if (!sim_capture_wait(s, e, &wait) && e->latest) {
			wait.turn = e->latest;
			wait.turn->references++;
			sim_give(s, &wait);
		}
	}
	return sim_leave(r);
}

/* -- words -------------------------------------------------------------------------------------------------------- */

static void give_word(const char *call, CUstream stream, enum sim_op op, uint64_t word, uint64_t value, unsigned flags,
		      bool wide, bool dropped)
{
	struct sim_stream *s = sim_handle_get(call, SIM_STREAM, (uint64_t)(uintptr_t)stream);

	if (word % (wide ? 8 : 4))
		sim_violation(call, "%#llx is not aligned", (unsigned long long)word);
	sim_resolve(call, word, wide ? 8 : 4, op == SIM_WRITE_VALUE);
	sim_give(s, &(struct sim_command){
			    .op = op, .call = call, .value = {word, value, flags, wide}, .dropped = dropped});
}

static void check_wait_flags(const char *call, unsigned flags)
{
	if (flags & ~(3u | (unsigned)CU_STREAM_WAIT_VALUE_FLUSH))
		sim_violation(call, "flags %#x", flags);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	check_wait_flags(__func__, flags);
	if (r == CUDA_SUCCESS)
		give_word(__func__, stream, SIM_WAIT_VALUE, address, value, flags, false,
			  sim_mutant_drops(__func__, __builtin_return_address(0), __builtin_return_address(1)));
	return sim_leave(r);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	check_wait_flags(__func__, flags);
	if (r == CUDA_SUCCESS)
		give_word(__func__, stream, SIM_WAIT_VALUE, address, value, flags, true,
			  sim_mutant_drops(__func__, __builtin_return_address(0), __builtin_return_address(1)));
	return sim_leave(r);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	SIM_RULE((flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) == 0, "flags %#x", flags);
	if (r == CUDA_SUCCESS)
		give_word(__func__, stream, SIM_WRITE_VALUE, address, value, flags, false, false);
	return sim_leave(r);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	SIM_RULE((flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) == 0, "flags %#x", flags);
	if (r == CUDA_SUCCESS)
		give_word(__func__, stream, SIM_WRITE_VALUE, address, value, flags, true, false);
	return sim_leave(r);
}

#define BATCH_MAX 255 /* cuStreamBatchMemOp's limit */

CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);
	const bool dropped = sim_mutant_drops(__func__, __builtin_return_address(0), __builtin_return_address(1));
	unsigned i;

	SIM_RULE(flags == 0 && ops && count && count <= BATCH_MAX, "1 to %d operations, no flags", BATCH_MAX);
	for (i = 0; i < count && r == CUDA_SUCCESS; i++) {
		const CUstreamBatchMemOpParams *op = &ops[i];
		const bool wide = op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
				  op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;

		if (op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
			give_word(__func__, stream, SIM_WAIT_VALUE, op->waitValue.address,
				  wide ? op->waitValue.value64 : op->waitValue.value, op->waitValue.flags, wide,
				  dropped);
		else if (op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
			 op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64) {
			if (sim.mutant && strcmp(sim.mutant, "no-reset") == 0 && op->writeValue.value64 == 0)
				continue;
			give_word(__func__, stream, SIM_WRITE_VALUE, op->writeValue.address,
				  wide ? op->writeValue.value64 : op->writeValue.value, op->writeValue.flags, wide,
				  false);
		} else
			SIM_RULE(false, "operation %d is not simulated", (int)op->operation);
	}
	return sim_leave(r);
}

/* -- events ------------------------------------------------------------------------------------------------------- */

#define EVENT_FLAGS (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)

CUresult cuEventCreate(CUevent *ret, unsigned flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		struct sim_event *e = calloc(1, sizeof *e);

		SIM_RULE((flags & ~(unsigned)EVENT_FLAGS) == 0, "flags %#x", flags);
		if (!e)
			abort();
		*e = (struct sim_event){.device = sim_current(), .flags = flags};
		*ret = (CUevent)(uintptr_t)sim_handle_new(SIM_EVENT, e);
	}
	return sim_leave(r);
}

CUresult cuEventDestroy(CUevent event)
{
	CUresult r = sim_enter(__func__, SIM_RELEASES);

	if (r == CUDA_SUCCESS) {
		struct sim_event *e = sim_handle_end(__func__, SIM_EVENT, (uint64_t)(uintptr_t)event);

		sim_turn_drop(e->latest);
		free(e);
	}
	return sim_leave(r);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		struct sim_event *e = SIM_GET(SIM_EVENT, event);
		struct sim_stream *s = SIM_GET(SIM_STREAM, stream);
		struct sim_turn *turn;

		SIM_RULE(e->device == s->device, "the event is of another device than the stream");
		e->capture = 0;
		if (s->capture) {
			sim_capture_record(s, e);
		} else {
			turn = calloc(1, sizeof *turn);
			if (!turn)
				abort();
			turn->references = 2; /* the event's and the command's */
			sim_turn_drop(e->latest);
			e->latest = turn;
			sim_give(s, &(struct sim_command){.op = SIM_RECORD, .call = __func__, .turn = turn});
		}
	}
	return sim_leave(r);
}

CUresult cuEventQuery(CUevent event)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		const struct sim_event *e = SIM_GET(SIM_EVENT, event);

		SIM_RULE(!e->capture, "the event was recorded in a capture");
		if (e->latest && !e->latest->done)
			r = CUDA_ERROR_NOT_READY;
		else if (e->latest)
			sim_host_sees(&e->latest->clock);
	}
	return sim_leave(r);
}

CUresult cuEventSynchronize(CUevent event)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		const struct sim_event *e = SIM_GET(SIM_EVENT, event);
		struct sim_turn *turn = e->latest;

		SIM_RULE(!e->capture, "the event was recorded in a capture");
		if (turn) {
			turn->references++;
			while (!turn->done)
				pthread_cond_wait(&sim.changed, &sim.lock);
			sim_host_sees(&turn->clock);
			sim_turn_drop(turn);
		}
	}
	return sim_leave(r);
}

CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		const struct sim_event *b = SIM_GET(SIM_EVENT, begin), *e = SIM_GET(SIM_EVENT, end);

		SIM_RULE(!((b->flags | e->flags) & CU_EVENT_DISABLE_TIMING), "an event was made without timing");
		SIM_RULE(b->latest && e->latest, "an event was never recorded");
		SIM_RULE(!b->capture && !e->capture, "an event was recorded in a capture");
		if (!b->latest->done || !e->latest->done)
			r = CUDA_ERROR_NOT_READY;
		else
			*ms = (float)((double)(int64_t)(e->latest->time_ns - b->latest->time_ns) / 1e6);
	}
	return sim_leave(r);
}
