/* SPDX-License-Identifier: MIT */
/*
 * device - what the library needs from an accelerator, in the words of CUDA: memory, streams, events, words.
 *
 * Law of streams: work given to one stream runs in order; streams run side by side and meet only at events. Every call
 * that takes a stream returns at once. An event holds for the latest record before the wait was given; waiting for an
 * event that was never recorded returns at once, as in CUDA. Device pointers are opaque to the library: it only adds
 * offsets to them. After a failure a stream is poisoned: it skips what follows, and every wait returns the first error.
 *
 * Law of words. Streams and the host meet at 32-bit words of registered host memory, and never by a call from a stream
 * into the host. A stream waits until *word >= value, counted cyclically (the difference as a signed number is not
 * negative), so a word that only grows needs no resetting. What was stored before a word was written is seen by whoever
 * has waited for it, on either side. A word that a captured stream waits for cannot grow, since the value is captured
 * too: it is taken, and becomes 0. Such a wait has no end of its own: whoever gives a stream one sees to it that the
 * word is written in every case (feeder.h).
 *
 * Back-ends are alternative files (device-host.c, device-cuda.c), each exporting one table.
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

#define DEVICE_UUID_BYTES 16

struct device_memory {
	device_ptr base;
	uint64_t bytes;
	int export_fd; /* a size-sealed memfd that the daemon may push into; -1: this back-end cannot export */
	void *handle;
};

/* Between streams of one device, where it can choose whose work runs first. */
enum device_priority { DEVICE_PRIORITY_LOW, DEVICE_PRIORITY_HIGH };

/* Rows of `width` bytes, `pitch` apart in host memory, packed at `to`. Contiguous: pitch == width, or one row. */
struct device_copy {
	device_ptr to;
	const void *from;
	uint64_t pitch, width, rows;
};

/* The weights of an expert are read once for so many pairs, where they lie. */
#define DEVICE_READ_PAIRS 4

/* The device's share of one layer's step: y += sum over pairs with map[ids[t][k]] >= 0 of weight * expert(x). */
struct device_experts {
	device_ptr slots; /* slot i begins at slots + i * slot_bytes, laid out as struct moe_slice says */
	uint64_t slot_bytes;
	const struct moe_layout *layout; /* of the layer; both are host memory that outlives the launch's completion */
	const struct moe_slice *slice;   /* of this layout */
	uint32_t hidden, activation;
	float limit; /* of MOE_ACTIVATION_SWIGLU_CLAMPED */
	uint32_t tokens, topk, n_experts;
	device_ptr x; /* [tokens][hidden] float */
	device_ptr y; /* [tokens][hidden] float, written whole (zeros where a token has no pair) */
	/* One block of registered host memory that outlives the launch's completion: ids, then weights, then map, the
	 * latter two at multiples of 16 bytes behind ids. */
	const int32_t *ids;   /* [tokens][topk] */
	const float *weights; /* [tokens][topk] */
	const int32_t *map;   /* [n_experts] expert -> slot or -1 */
	/* Experts that are read where they lie, in pool files: where n_reads is not 0, what the map says from n_slots
	 * on is a number of them. Each file has a share of a record's rows; it is registered, and stays as it is until
	 * the launch's completion. */
	uint32_t n_slots, n_reads, n_shares;
	const uint8_t *const *records; /* [n_reads][n_shares] where the record begins in that file */
	void *room; /* [device_room_bytes()] behind map in the block, a multiple of 16: the back-end's */
	/* Or, where on_map is not 0, all three lie in the device's memory; the pointers above are nothing then. */
	device_ptr on_ids, on_weights, on_map;
};

static inline uint64_t device_room_bytes(uint32_t n_reads, uint32_t n_shares)
{
	return (uint64_t)n_shares * (n_reads * sizeof(uint64_t) + 256);
}

struct device_ops {
	const char *name;
	bool exports;       /* memory can be pushed into */
	bool one_registrar; /* host_register of much memory holds up other processes: one at a time (registrar.h) */

	/* `which` of several: what stands behind the colon of a device's name, "" for the first. */
	int (*open)(struct device **ret, const char *which, struct moe_error *err);
	struct device *(*close)(struct device *device);
	/* NULL, or one line on why nothing works on this device any more: then every call fails, but for those that
	 * free and close. Lives as long as the device. */
	const char *(*failure)(struct device *device);

	int (*alloc)(struct device *device, uint64_t bytes, struct device_memory *ret, struct moe_error *err);
	void (*free)(struct device *device, struct device_memory *memory);

	/* Or both NULL. Of memory that alloc has made: a file descriptor for another process, which is the caller's,
	 * and the name of the device there. And of such a one the memory, as long as free has not given it back; the
	 * fd stays the caller's. */
	int (*share)(struct device *device, const struct device_memory *memory, uint8_t ret_uuid[DEVICE_UUID_BYTES],
		     int *ret_fd, struct moe_error *err);
	int (*import)(struct device *device, int fd, uint64_t bytes, struct device_memory *ret, struct moe_error *err);

	/* Or NULL. Of memory that alloc has made: a dma-buf of all of it, for NICs and peers; the fd is the caller's,
	 * and what it is of is nobody's after free. -EOPNOTSUPP: this device has none. */
	int (*dmabuf)(struct device *device, const struct device_memory *memory, int *ret_fd, struct moe_error *err);

	/* Makes [base, base + bytes) of host memory, page-aligned, known to the device: copies, words and kernels touch
	 * no other, and none of them reaches from one such range into the next. `writes`: it may be written as well.
	 * If !reads_read_only(), even memory that is only read must be mapped writable while it is registered. Shared
	 * mappings only. It stays mapped until the device is closed, which ends this. */
	int (*host_register)(struct device *device, void *base, uint64_t bytes, bool writes, struct moe_error *err);
	bool (*reads_read_only)(const struct device *device);
	/* Or NULL: no. It reads all memory of the host by the host's own page tables: host_register of what is only
	 * read pins nothing, and holds up nobody. */
	bool (*reads_pageable)(const struct device *device);
	/* Or both NULL; where reads_pageable(). Of host memory that was made known by host_register, to be read: that
	 * it is mostly read, by this device too; and that the device is to have its pages near, in the stream's order.
	 * Only advice: a refusal fails nothing else, -EOPNOTSUPP: the driver has no such call. */
	int (*pages_advise)(struct device *device, const void *base, uint64_t bytes);
	int (*pages_fetch)(struct device_stream *stream, const void *base, uint64_t bytes);
	/* Or NULL: the back-end's name. One line on the device, as a log should have it. */
	const char *(*describe)(const struct device *device);

	int (*stream_new)(struct device *device, enum device_priority priority, struct device_stream **ret,
			  struct moe_error *err);
	struct device_stream *(*stream_free)(struct device_stream *stream); /* waits for its work */
	int (*stream_error)(struct device_stream *stream);                  /* 0, or what has poisoned it */

	/* A stream that somebody else made and keeps, by its handle. *stream is NULL at first, then what the call
	 * before has left there, whose work is over; stream_return ends that, and waits for nothing. `captured`: it may
	 * be one that is being captured: then what it is given is kept and run later, any number of times; no event of
	 * others can be waited for on it. -EINVAL: no such stream, or one that cannot be used. */
	int (*stream_borrow)(struct device *device, uintptr_t handle, bool captured, struct device_stream **stream,
			     struct moe_error *err);
	void (*stream_return)(struct device_stream *stream); /* takes NULL */
	uintptr_t (*stream_handle)(const struct device_stream *stream);

	int (*event_new)(struct device *device, struct device_event **ret, struct moe_error *err);
	struct device_event *(*event_free)(struct device_event *event);
	int (*event_record)(struct device_event *event, struct device_stream *stream);
	int (*event_query)(struct device_event *event);                     /* 0 done, -EBUSY, or the stream's error */
	int (*event_wait)(struct device_event *event, uint64_t timeout_ns); /* the host waits; -ETIMEDOUT; 0 for ever */
	/* From when `from` was reached to when `to` was; both have been. 0 when it cannot be told. */
	uint64_t (*event_elapsed_ns)(struct device_event *from, struct device_event *to);
	int (*stream_wait_event)(struct device_stream *stream, struct device_event *event);

	int (*copy_to_device)(struct device_stream *stream, const struct device_copy *copies, uint32_t n);
	int (*copy_to_host)(struct device_stream *stream, void *dst, device_ptr src, uint64_t bytes);

	/* The law of words, from the streams' side and from the host's. word_wait: -ETIMEDOUT, timeout_ns is not 0. */
	int (*stream_wait_word)(struct device_stream *stream, const uint32_t *word, uint32_t value);
	int (*stream_write_word)(struct device_stream *stream, uint32_t *word, uint32_t value);
	/* For words that go round: *waiting becomes 1, the stream waits until *word is 1 or more, both become 0. */
	int (*stream_take_word)(struct device_stream *stream, uint32_t *word, uint32_t *waiting);
	/* Both of them, or NULL where there is no share(): words in the device's own memory, which another process may
	 * write as well. The host never looks at them. */
	int (*stream_wait_at)(struct device_stream *stream, device_ptr word, uint32_t value);
	int (*stream_write_at)(struct device_stream *stream, device_ptr word, uint32_t value);
	void (*word_write)(uint32_t *word, uint32_t value);
	int (*word_wait)(const uint32_t *word, uint32_t value, uint64_t timeout_ns);

	/* Checks that such a launch is possible and makes the scratch memory for it, so that no step must; its
	 * addresses are not looked at. Not beside launches on this stream. */
	int (*experts_prepare)(struct device_stream *stream, const struct device_experts *largest,
			       struct moe_error *err);
	int (*experts)(struct device_stream *stream, const struct device_experts *work); /* *work is copied */

	/* y[i] += z[i] for n floats; z is registered host memory, which is read in place; or, where `landing` is not 0,
	 * room for so many, it is copied there first. */
	int (*add)(struct device_stream *stream, device_ptr y, const float *z, uint64_t n, device_ptr landing);
};

/* Whether a word has reached a value; what was stored before it is seen. */
static inline bool device_word_reached(const uint32_t *word, uint32_t value)
{
	return (int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0;
}

extern const struct device_ops device_host;
extern const struct device_ops device_cuda;

/* The back-end that `name` ("host", "cuda", "cuda:1", "auto") asks for, and which of its devices: the text behind the
 * colon. "auto" is a GPU where there is one that works, else the host. -EINVAL: there is no such back-end. */
int device_find(const char *name, const struct device_ops **ret, const char **ret_which, struct moe_error *err);

#endif
