/* SPDX-License-Identifier: MIT */
/*
 * Captured streams and the graphs that come of them.
 *
 * A capture has a track for each stream that takes part: the one that it was begun on, and those that wait for an event
 * of it. What such a stream is given does not run, it is kept. A launch gives each track's commands to a stream, the
 * first track's to the one that it is launched on; events of the capture are new ones each time. So the rules of
 * streams hold for graphs too, and every launch has an order of its own.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/cuda-sim/sim.h"

#define TRACKS_MAX 8

struct kept {
	struct sim_command command;
	uint32_t record; /* of a record or a wait */
};

struct track {
	struct sim_stream *stream; /* while it is captured */
	struct kept *kept;
	uint32_t n;
};

struct sim_capture {
	struct sim_capture *next;
	uint64_t number;
	CUstreamCaptureMode mode;
	pthread_t thread;
	struct track tracks[TRACKS_MAX];
	uint32_t n_tracks, n_records;
};

/* A graph, executable or not. */
struct graph {
	struct track tracks[TRACKS_MAX];
	uint32_t n_tracks, n_records;
	struct sim_turn *over; /* the latest launch; NULL: none */
};

static struct sim_capture *captures;
static uint64_t n_captures;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* -- rules -------------------------------------------------------------------------------------------------------- */

/* Calls that wait for work, or may: a capture has none that could end. */
static bool may_wait(const char *call)
{
	static const char *const names[] = {
		"cuMemAlloc",        "cuMemFree",   "cuMemCreate",       "cuMemMap",     "cuMemUnmap",
		"cuMemHostRegister", "cuMemHostUn", "cuModuleLoad",      "cuModuleUn",   "cuEventQuery",
		"cuEventSync",       "cuStreamSyn", "cuStreamQuery",     "cuFuncLoad",   "cuMemRelease",
		"cuMemAddress",      "cuMemSet",    "cuDevicePrimaryCt", "cuMemGetInfo",
	};
	size_t i;

	for (i = 0; i < sizeof names / sizeof *names; i++)
		if (strncmp(call, names[i], strlen(names[i])) == 0 && !strstr(call, "Async"))
			return true;
	return false;
}

void sim_capture_check(const char *call)
{
	const struct sim_capture *c;

	if (!captures || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || !may_wait(call))
		return;
	for (c = captures; c; c = c->next)
		if (c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
		    (c->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && pthread_equal(c->thread, pthread_self())))
			sim_violation(call, "it is not permitted while a stream is being captured, but in a thread "
					    "whose capture mode is relaxed");
}

void sim_not_captured(const char *call, const struct sim_stream *stream)
{
	if (stream->capture)
		sim_violation(call, "the stream is being captured");
}

/* -- capture ------------------------------------------------------------------------------------------------------ */

void sim_capture_add(struct sim_stream *stream, const struct sim_command *command, uint32_t record)
{
	struct track *t = &stream->capture->tracks[stream->track];

	t->kept = realloc(t->kept, (t->n + 1) * sizeof *t->kept);
	if (!t->kept)
		abort();
	t->kept[t->n++] = (struct kept){*command, record};
}

void sim_capture_record(struct sim_stream *stream, struct sim_event *event)
{
	event->capture = stream->capture->number;
	event->record = stream->capture->n_records++;
	sim_capture_add(stream, &(struct sim_command){.op = SIM_RECORD, .call = "cuEventRecord"}, event->record);
}

static void join_capture(struct sim_stream *stream, struct sim_capture *c)
{
	if (c->n_tracks == TRACKS_MAX)
		sim_violation("cuStreamWaitEvent", "%d streams in a capture are all that are simulated", TRACKS_MAX);
	stream->capture = c;
	stream->track = c->n_tracks;
	c->tracks[c->n_tracks++] = (struct track){.stream = stream};
}

bool sim_capture_wait(struct sim_stream *stream, const struct sim_event *event, const struct sim_command *wait)
{
	struct sim_capture *c = captures;

	if (!event->capture) {
		if (stream->capture)
			sim_violation(wait->call, "a captured stream waits for an event that is not of its capture");
		return false;
	}
	while (c && c->number != event->capture)
		c = c->next;
	if (!c)
		sim_violation(wait->call, "the event was recorded in a capture that has ended");
	if (stream->capture && stream->capture != c)
		sim_violation(wait->call, "the event is of another capture than the stream");
	if (!stream->capture)
		join_capture(stream, c);
	sim_capture_add(stream, wait, event->record);
	return true;
}

/* Whether another track waits for the end of this one. */
static bool is_joined(const struct sim_capture *c, uint32_t track)
{
	const struct track *t = &c->tracks[track];
	const struct kept *last = &t->kept[t->n - 1];
	uint32_t i, j;

	for (i = 0; i < c->n_tracks; i++)
		for (j = 0; j < c->tracks[i].n; j++)
			if (i != track && last->command.op == SIM_RECORD &&
			    c->tracks[i].kept[j].command.op == SIM_WAIT_EVENT &&
			    c->tracks[i].kept[j].record == last->record)
				return true;
	return false;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		struct sim_stream *s = SIM_GET(SIM_STREAM, stream);
		struct sim_capture *c = calloc(1, sizeof *c);

		sim_not_captured(__func__, s);
		if (!c)
			abort();
		*c = (struct sim_capture){
			.next = captures, .number = ++n_captures, .mode = mode, .thread = pthread_self()};
		captures = c;
		join_capture(s, c);
	}
	return sim_leave(r);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *ret)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		struct sim_stream *s = SIM_GET(SIM_STREAM, stream);
		struct sim_capture *c = s->capture, **at = &captures;
		struct graph *graph = calloc(1, sizeof *graph);
		uint32_t i;

		SIM_RULE(c && s->track == 0, "no capture was begun on this stream");
		SIM_RULE(c->mode == CU_STREAM_CAPTURE_MODE_RELAXED || pthread_equal(c->thread, pthread_self()),
			 "another thread has begun the capture");
		if (!graph)
			abort();
		for (i = 0; i < c->n_tracks; i++) {
			SIM_RULE(i == 0 || is_joined(c, i), "a stream of the capture was not joined to the first one");
			c->tracks[i].stream->capture = NULL;
			graph->tracks[i] = c->tracks[i];
			graph->tracks[i].stream = NULL;
		}
		graph->n_tracks = c->n_tracks;
		graph->n_records = c->n_records;
		while (*at != c)
			at = &(*at)->next;
		*at = c->next;
		free(c);
		*ret = (CUgraph)(uintptr_t)sim_handle_new(SIM_GRAPH, graph);
	}
	return sim_leave(r);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	const CUstreamCaptureMode now = *mode;

	*mode = thread_mode;
	thread_mode = now;
	return CUDA_SUCCESS;
}

/* -- graphs ------------------------------------------------------------------------------------------------------- */

static void *copy_of(const void *from, size_t bytes)
{
	void *copy = malloc(bytes ? bytes : 1);

	if (!copy)
		abort();
	return bytes ? memcpy(copy, from, bytes) : copy;
}

static void own_params(struct sim_command *c)
{
	if (c->op == SIM_KERNEL)
		c->launch.params = copy_of(c->launch.params, c->launch.kernel->params_bytes);
}

static void graph_free(struct graph *graph)
{
	uint32_t i, j;

	for (i = 0; i < graph->n_tracks; i++) {
		for (j = 0; j < graph->tracks[i].n; j++)
			if (graph->tracks[i].kept[j].command.op == SIM_KERNEL)
				free(graph->tracks[i].kept[j].command.launch.params);
		free(graph->tracks[i].kept);
	}
	sim_turn_drop(graph->over);
	free(graph);
}

CUresult cuGraphInstantiate(CUgraphExec *ret, CUgraph handle, unsigned long long flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		const struct graph *graph = SIM_GET(SIM_GRAPH, handle);
		struct graph *exec = copy_of(graph, sizeof *graph);
		uint32_t i, j;

		SIM_RULE(flags == 0, "flags %#llx are not simulated", flags);
		for (i = 0; i < exec->n_tracks; i++) {
			struct track *t = &exec->tracks[i];

			t->kept = copy_of(t->kept, t->n * sizeof *t->kept);
			for (j = 0; j < t->n; j++)
				own_params(&t->kept[j].command);
		}
		*ret = (CUgraphExec)(uintptr_t)sim_handle_new(SIM_GRAPH_EXEC, exec);
	}
	return sim_leave(r);
}

static struct sim_turn *turn_new(unsigned references)
{
	struct sim_turn *turn = calloc(1, sizeof *turn);

	if (!turn)
		abort();
	turn->references = references;
	return turn;
}

static void give_track(const struct track *t, struct sim_stream *stream, struct sim_turn **turns)
{
	uint32_t i;

	for (i = 0; i < t->n; i++) {
		struct sim_command c = t->kept[i].command;

		own_params(&c);
		if (c.op == SIM_RECORD || c.op == SIM_WAIT_EVENT) {
			c.turn = turns[t->kept[i].record];
			c.turn->references++;
		}
		sim_give(stream, &c);
	}
}

/* Launches of one graph run one after the other, whatever they are launched on. */
CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_CONTEXT);

	if (r == CUDA_SUCCESS) {
		struct graph *exec = SIM_GET(SIM_GRAPH_EXEC, handle);
		struct sim_stream *s = SIM_GET(SIM_STREAM, stream);
		struct sim_turn **turns = calloc(exec->n_records + 1, sizeof(struct sim_turn *));
		uint32_t i;

		sim_not_captured(__func__, s);
		if (!turns)
			abort();
		for (i = 0; i < exec->n_records; i++)
			turns[i] = turn_new(1);
		if (exec->over) /* its reference becomes the command's */
			sim_give(s, &(struct sim_command){.op = SIM_WAIT_EVENT, .call = __func__, .turn = exec->over});
		give_track(&exec->tracks[0], s, turns);
		for (i = 1; i < exec->n_tracks; i++) {
			struct sim_stream *branch = sim_stream_new(__func__, s->device);

			give_track(&exec->tracks[i], branch, turns);
			branch->doomed = true;
		}
		exec->over = turn_new(2);
		sim_give(s, &(struct sim_command){.op = SIM_RECORD, .call = __func__, .turn = exec->over});
		for (i = 0; i < exec->n_records; i++)
			sim_turn_drop(turns[i]);
		free(turns);
	}
	return sim_leave(r);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	CUresult r = sim_enter(__func__, SIM_RELEASES);

	if (r == CUDA_SUCCESS)
		graph_free(sim_handle_end(__func__, SIM_GRAPH, (uint64_t)(uintptr_t)graph));
	return sim_leave(r);
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult r = sim_enter(__func__, SIM_RELEASES);

	if (r == CUDA_SUCCESS)
		graph_free(sim_handle_end(__func__, SIM_GRAPH_EXEC, (uint64_t)(uintptr_t)exec));
	return sim_leave(r);
}
