/* SPDX-License-Identifier: MIT */
/*
 * device - what the library needs from an accelerator, in the words of CUDA: memory, streams, events.
 *
 * Law of streams: work given to one stream runs in order; streams run side by side and meet only at events. Every call
 * that takes a stream returns at once. An event holds for the latest record before the wait was given; waiting for an
 * event that was never recorded returns at once, as in CUDA. Device pointers are opaque to the library: it only adds
 * offsets to them. After a failure a stream is poisoned: it skips what follows, and every wait returns the first error.
 *
 * Back-ends are alternative files (device-host.c; later device-cuda.c), each exporting one table.
 */
#ifndef LIB_DEVICE_DEVICE_H
#define LIB_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moe-error.h"
#include "uapi/moe_manifest.h"

struct device;
struct device_stream;
struct device_event;

typedef uint64_t device_ptr;

struct device_memory {
	device_ptr base;
	uint64_t bytes;
	int export_fd; /* a size-sealed memfd that the daemon may push into; -1: this back-end cannot export */
	void *handle;
};

/* The device's share of one layer's step: y += sum over pairs with map[ids[t][k]] >= 0 of weight * expert(x). */
struct device_experts {
	device_ptr slots; /* slot i begins at slots + i * slot_bytes, laid out as struct moe_slice says */
	uint64_t slot_bytes;
	const struct moe_layout *layout; /* of the layer; both are host memory that outlives the launch's completion */
	const struct moe_slice *slice;   /* of this layout */
	uint32_t hidden, activation;
	float limit; /* of MOE_ACTIVATION_SWIGLU_CLAMPED */
	uint32_t tokens, topk, n_experts;
	device_ptr x;         /* [tokens][hidden] float */
	device_ptr y;         /* [tokens][hidden] float, written whole (zeros where a token has no pair) */
	const int32_t *ids;   /* [tokens][topk], host memory that outlives the launch's completion */
	const float *weights; /* the same */
	const int32_t *map;   /* [n_experts] expert -> slot or -1, the same */
};

struct device_ops {
	const char *name;
	bool exports; /* memory can be pushed into */

	int (*open)(struct device **ret, struct moe_error *err);
	struct device *(*close)(struct device *device);

	int (*alloc)(struct device *device, uint64_t bytes, struct device_memory *ret, struct moe_error *err);
	void (*free)(struct device *device, struct device_memory *memory);

	/* Makes [base, base + bytes) of host memory readable by copies (cuMemHostRegister); host: nothing to do. */
	int (*host_register)(struct device *device, const void *base, uint64_t bytes, struct moe_error *err);
	void (*host_unregister)(struct device *device, const void *base);

	int (*stream_new)(struct device *device, struct device_stream **ret, struct moe_error *err);
	struct device_stream *(*stream_free)(struct device_stream *stream); /* waits for its work */

	int (*event_new)(struct device *device, struct device_event **ret, struct moe_error *err);
	struct device_event *(*event_free)(struct device_event *event);
	int (*event_record)(struct device_event *event, struct device_stream *stream);
	int (*event_query)(struct device_event *event);                     /* 0 done, -EBUSY, or the stream's error */
	int (*event_wait)(struct device_event *event, uint64_t timeout_ns); /* the host waits; -ETIMEDOUT; 0 for ever */
	uint64_t (*event_time_ns)(struct device_event *event);              /* when it was reached; differences only */
	int (*stream_wait_event)(struct device_stream *stream, struct device_event *event);

	int (*copy_to_device)(struct device_stream *stream, device_ptr dst, const void *src, uint64_t bytes);
	int (*copy_to_host)(struct device_stream *stream, void *dst, device_ptr src, uint64_t bytes);
	/* rows of `width` bytes, packed at dst, `src_pitch` apart in host memory. */
	int (*copy_rows_to_device)(struct device_stream *stream, device_ptr dst, const void *src, uint64_t src_pitch,
				   uint64_t width, uint64_t rows);

	/* The stream goes on when wait(arg) returns; its error poisons the stream. host: called on the stream's
	 * thread. */
	int (*stream_wait_host)(struct device_stream *stream, int (*wait)(void *arg), void *arg);

	int (*experts)(struct device_stream *stream, const struct device_experts *work); /* *work is copied */
};

extern const struct device_ops device_host;

/* NULL when the library has no such back-end. */
const struct device_ops *device_find(const char *name);

#endif
