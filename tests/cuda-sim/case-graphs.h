/* SPDX-License-Identifier: MIT */
/* case-graphs - what CUDA allows and forbids of captured streams. */
#ifndef TESTS_CUDA_SIM_CASE_GRAPHS_H
#define TESTS_CUDA_SIM_CASE_GRAPHS_H

#include "tests/cuda-sim/case.h"

/* Ends the capture on stream `a`. */
static CUgraphExec end_capture(void)
{
	CUgraphExec exec;
	CUgraph graph;

	good(cuStreamEndCapture(a, &graph));
	good(cuGraphInstantiate(&exec, graph, 0));
	good(cuGraphDestroy(graph));
	return exec;
}

/* Nothing runs while it is captured; each launch reads memory anew; a word is waited for and reset in each. */
static void works_replays(void)
{
	CUstreamBatchMemOpParams ops[2] = {
		{.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32, .flags = CU_STREAM_WAIT_VALUE_GEQ}},
		{.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32}},
	};
	uint32_t *word = (uint32_t *)(void *)(host + 8192), i;
	CUstreamCaptureStatus status;
	CUgraphExec exec;

	begin();
	word = (uint32_t *)(void *)(host + 8192);
	good(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
	good(cuStreamIsCapturing(a, &status));
	must(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	good(cuMemcpyHtoDAsync(memory, host, 4096, a));
	ops[0].waitValue.address = ops[1].writeValue.address = host_on_device + 8192;
	ops[0].waitValue.value = 1;
	good(cuStreamBatchMemOp(a, 2, ops, 0));
	launch(a, memory + 8192, memory, 4096, 4096);
	good(cuMemcpyDtoHAsync(host + 4096, memory + 8192, 4096, a));
	exec = end_capture();
	must(sim_control.runs() == 0);
	for (i = 1; i <= 100; i++) {
		memset(host, (int)i, 4096);
		good(cuGraphLaunch(exec, i % 2 ? a : b));
		__atomic_store_n(word, 1, __ATOMIC_RELEASE);
		good(cuStreamSynchronize(i % 2 ? a : b));
		must(*word == 0 && host[4096] == i && host[8191] == i);
	}
	good(cuGraphExecDestroy(exec));
	end();
}

/* Two branches, and events of the graph that are new ones in each launch; launches do not overlap. */
static void works_branches(void)
{
	CUgraphExec exec;
	CUevent joined;
	uint32_t i;

	begin();
	good(cuEventCreate(&joined, CU_EVENT_DEFAULT));
	good(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
	good(cuMemcpyHtoDAsync(memory, host, 64, a));
	good(cuEventRecord(event, a));
	good(cuStreamWaitEvent(b, event, 0));
	good(cuMemcpyDtoDAsync(memory + 64, memory, 64, b));
	good(cuMemcpyDtoDAsync(memory + 128, memory, 64, a));
	good(cuEventRecord(joined, b));
	good(cuStreamWaitEvent(a, joined, 0));
	good(cuMemcpyDtoHAsync(host + 4096, memory + 64, 128, a));
	exec = end_capture();
	for (i = 1; i <= 50; i++) {
		memset(host, (int)i, 64);
		good(cuGraphLaunch(exec, a));
		good(cuGraphLaunch(exec, b));
		good(cuStreamSynchronize(b));
		good(cuStreamSynchronize(a));
		must(host[4096] == i && host[4096 + 127] == i);
	}
	good(cuEventDestroy(joined));
	good(cuGraphExecDestroy(exec));
	end();
}

/* A thread that has said so may make calls that might wait. */
static void works_relaxed(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	begin();
	good(cuEventRecord(event, b));
	good(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
	good(cuThreadExchangeStreamCaptureMode(&mode));
	must(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
	good(cuEventSynchronize(event));
	good(cuStreamQuery(b));
	good(cuThreadExchangeStreamCaptureMode(&mode));
	must(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
	good(cuMemcpyHtoDAsync(memory, host, 64, a));
	good(cuGraphExecDestroy(end_capture()));
	end();
}

static void captured_synchronized(void)
{
	begin();
	good(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
	cuStreamSynchronize(a);
}

static void captured_queried(void)
{
	begin();
	good(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
	cuStreamQuery(a);
}

static void captured_event_queried(void)
{
	begin();
	good(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
	good(cuEventRecord(event, a));
	cuEventQuery(event);
}

static void unsafe_beside_capture(void)
{
	begin();
	good(cuEventRecord(event, b));
	good(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
	cuEventQuery(event);
}

static void memory_beside_capture(void)
{
	CUdeviceptr at;

	begin();
	good(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	cuMemAlloc(&at, 64);
}

static void default_stream_captured(void)
{
	begin();
	cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED);
}

static void event_from_outside(void)
{
	begin();
	good(cuEventRecord(event, b));
	good(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
	cuStreamWaitEvent(a, event, 0);
}

static void event_from_inside(void)
{
	begin();
	good(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
	good(cuEventRecord(event, a));
	good(cuGraphExecDestroy(end_capture()));
	cuStreamWaitEvent(b, event, 0);
}

static void not_joined(void)
{
	CUgraph graph;

	begin();
	good(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
	good(cuEventRecord(event, a));
	good(cuStreamWaitEvent(b, event, 0));
	good(cuMemcpyHtoDAsync(memory, host, 64, b));
	cuStreamEndCapture(a, &graph);
}

/* Two graphs that use the same memory, on two streams. */
static void race_of_graphs(void)
{
	CUgraphExec exec[2];

	begin();
	for (int i = 0; i < 2; i++) {
		good(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
		good(cuMemcpyHtoDAsync(memory, host, 64, a));
		exec[i] = end_capture();
	}
	good(cuGraphLaunch(exec[0], a));
	good(cuGraphLaunch(exec[1], b));
	end();
}

#endif
