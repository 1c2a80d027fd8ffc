/* SPDX-License-Identifier: MIT */
/*
 * device-cuda - the back-end for NVIDIA GPUs, on the driver API alone.
 *
 * Law of contexts: the device's primary context, the one that frameworks use, is retained while it is open. Every call
 * pushes it and pops it again: the caller's current context is what it was. Any thread may call. While it does, its
 * capture mode is relaxed: a framework may be capturing a stream of its own, which the library's calls, and those of
 * its threads, would end otherwise.
 *
 * Law of failures. A call that the driver refuses fails alone, with the code that fits; but what comes behind a command
 * that was refused to a stream would run too early, so that is the end (but for copies of a device that only copies:
 * who is behind them is told), as an error that CUDA calls sticky (an illegal address, a failed launch, an ECC error)
 * is the end of the context: it is written down once, in one line, and from then on no call but those that free and
 * close reaches the driver, each returns -EIO, and failure() says why.
 *
 * Law of memory. What copies, words and kernels touch of host memory lies in one registered range; the ranges are
 * looked up, so that an address outside them, or one that reaches from one into the next, is an error here and not a
 * fault there. Device addresses of registered memory are always asked for: they may differ from the host's.
 */
#ifndef LIB_DEVICE_CUDA_H
#define LIB_DEVICE_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "device/cuda-driver.h"
#include "device/device.h"
#include "kernels/cuda/launch.h"

/* Registered host memory. */
struct cuda_range {
	uint8_t *base;
	uint64_t bytes;
	CUdeviceptr device;
	bool pinned; /* the driver knows it */
};

struct device {
	const struct cuda_driver *cu;
	CUdevice id;
	CUcontext context;
	CUmodule module;
	CUfunction functions[CUDA_KERNEL_COUNT];
	int priority_low, priority_high;
	bool reads_read_only; /* registers memory that is mapped read-only ... */
	bool flags_read_only; /* ... and wants to be told */
	bool exports_slots;   /* memory can have a file descriptor */
	bool dmabufs;         /* and a dma-buf ... */
	bool rdma;            /* ... if it was told when it was made */
	bool reads_pageable;  /* reads all memory of the host by the host's page tables */
	bool copies_only;     /* opened by its UUID: no kernels are loaded */
	char name[96];        /* e.g. "GPU 0 (NVIDIA H200)" */
	char described[192];  /* the same, and how it reads the pool */
	pthread_mutex_t lock; /* of failure's text and of the ranges */
	char why[256];        /* written once, before `failed` */
	atomic_bool failed;
	struct cuda_range *ranges; /* [n_ranges] */
	uint32_t n_ranges;
};

#define CUDA_OUTGROWN_MAX 24 /* each is at least twice as large as the one before */

/* Memory that the kernels of one stream work in. Work in flight may use what it has outgrown: that lives on. */
struct cuda_scratch {
	struct device_memory now, outgrown[CUDA_OUTGROWN_MAX];
	uint32_t n_outgrown;
};

struct device_stream {
	struct device *device;
	CUstream stream;             /* ours, or borrowed */
	struct cuda_scratch scratch; /* the caller's lock: one thread at a time launches on a stream */
};

struct device_event {
	struct device *device;
	CUevent event;
};

/* device-cuda.c: between enter and leave the device's context is current. -EIO, and no leave: it has failed. */
int cuda_enter(struct device *device);
void cuda_leave(struct device *device);
/* One call between the two. */
#define CUDA_WITHIN(device, call)                                                                                      \
	({                                                                                                             \
		int within_ = cuda_enter(device);                                                                      \
		if (within_ == 0) {                                                                                    \
			within_ = (call);                                                                              \
			cuda_leave(device);                                                                            \
		}                                                                                                      \
		within_;                                                                                               \
	})
/* The same to free what there is, also of a device that has failed. False: its context is gone, and all in it. */
bool cuda_enter_to_free(struct device *device);

/* The driver's answer as a negative errno value; `call` is named in what failure() says of a sticky one. */
int cuda_result(struct device *device, CUresult result, const char *call);
int cuda_given(struct device *device, CUresult result, const char *call);
#define CUDA_CALL(device, function, ...) cuda_result(device, (device)->cu->function(__VA_ARGS__), #function)
/* The same of what is given to a stream. */
#define CUDA_GIVE(device, function, ...) cuda_given(device, (device)->cu->function(__VA_ARGS__), #function)

/* Of copies and their numbers: where the device only copies (a daemon's), numbers tell who is behind which copy, so one
 * that is refused fails alone. */
int cuda_copied(struct device *device, CUresult result, const char *call);
#define CUDA_COPY(device, function, ...) cuda_copied(device, (device)->cu->function(__VA_ARGS__), #function)

/* One line on why a call of an opening, making or registering kind was refused. */
int cuda_refused(struct device *device, int code, const char *what, struct moe_error *err);

/* device-cuda-memory.c */
int cuda_alloc(struct device *device, uint64_t bytes, struct device_memory *ret, struct moe_error *err);
void cuda_free(struct device *device, struct device_memory *memory);
int cuda_share(struct device *device, const struct device_memory *memory, uint8_t ret_uuid[DEVICE_UUID_BYTES],
	       int *ret_fd, struct moe_error *err);
int cuda_import(struct device *device, int fd, uint64_t bytes, struct device_memory *ret, struct moe_error *err);
int cuda_dmabuf(struct device *device, const struct device_memory *memory, int *ret_fd, struct moe_error *err);
int cuda_register(struct device *device, void *base, uint64_t bytes, bool writes, struct moe_error *err);
int cuda_pages_advise(struct device *device, const void *base, uint64_t bytes);
int cuda_pages_fetch(struct device_stream *stream, const void *base, uint64_t bytes);
void cuda_unregister_all(struct device *device);
/* The device's address of [host, host + bytes); -EFAULT when it does not lie in one range. */
int cuda_find(struct device *device, const void *host, uint64_t bytes, CUdeviceptr *ret);

/* device-cuda-word.c */
int cuda_event_new(struct device *device, struct device_event **ret, struct moe_error *err);
struct device_event *cuda_event_free(struct device_event *event);
int cuda_event_record(struct device_event *event, struct device_stream *stream);
int cuda_event_query(struct device_event *event);
int cuda_event_wait(struct device_event *event, uint64_t timeout_ns);
uint64_t cuda_event_elapsed_ns(struct device_event *from, struct device_event *to);
int cuda_stream_wait_event(struct device_stream *stream, struct device_event *event);
int cuda_stream_wait_at(struct device_stream *stream, device_ptr word, uint32_t value);
int cuda_stream_write_at(struct device_stream *stream, device_ptr word, uint32_t value);
int cuda_stream_wait_word(struct device_stream *stream, const uint32_t *word, uint32_t value);
int cuda_stream_write_word(struct device_stream *stream, uint32_t *word, uint32_t value);
int cuda_stream_take_word(struct device_stream *stream, uint32_t *word, uint32_t *waiting);
void cuda_word_write(uint32_t *word, uint32_t value);
int cuda_word_wait(const uint32_t *word, uint32_t value, uint64_t timeout_ns);

/* device-cuda-copy.c */
int cuda_copy_to_device(struct device_stream *stream, const struct device_copy *copies, uint32_t n);
int cuda_copy_to_host(struct device_stream *stream, void *dst, device_ptr src, uint64_t bytes);

/* device-cuda-experts.c */
int cuda_load_kernels(struct device *device, struct moe_error *err);
int cuda_experts_prepare(struct device_stream *stream, const struct device_experts *largest, struct moe_error *err);
int cuda_launch(struct device_stream *stream, const struct device_experts *work);
int cuda_add(struct device_stream *stream, device_ptr y, const float *z, uint64_t n, device_ptr landing);
void cuda_scratch_free(struct device *device, struct cuda_scratch *scratch);

#endif
