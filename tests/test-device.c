/* SPDX-License-Identifier: MIT */
/*
 * The devices keep the promises of device.h: order within a stream, none between streams but by events and words.
 * MOE_TEST_DEVICE says which device; what only the host's promises is left out on others.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memfd.h"
#include "device/device-host.h"
#include "tests/plain-experts.h"

static unsigned long long seed;
static const struct device_ops *ops;
static struct device *device;

/* What streams reach of the host's memory: registered. */
static struct pinned {
	uint8_t host[1024], back[1024];
	uint32_t gate, second, word, waiting;
	uint64_t sent, seen;
	float floats[256];
} * pinned;

static void pin(void)
{
	pinned = mmap(NULL, ALIGN_UP(sizeof *pinned, 4096), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (pinned == MAP_FAILED || ops->host_register(device, pinned, ALIGN_UP(sizeof *pinned, 4096), true, NULL) < 0)
		abort();
}

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

static struct device_stream *new_stream(void)
{
	struct device_stream *stream = NULL;

	if (ops->stream_new(device, DEVICE_PRIORITY_HIGH, &stream, NULL) < 0)
		abort();
	return stream;
}

static struct device_event *new_event(void)
{
	struct device_event *event = NULL;

	if (ops->event_new(device, &event, NULL) < 0)
		abort();
	return event;
}

static int copy_in(struct device_stream *stream, device_ptr to, const void *from, uint64_t bytes)
{
	return ops->copy_to_device(stream, &(struct device_copy){to, from, bytes, bytes, 1}, 1);
}

/* A gate holds a stream until the test opens it: a word that is 0 at first. */
static int close_gate(struct device_stream *stream, const uint32_t *gate)
{
	return ops->stream_wait_word(stream, gate, 1);
}

static void test_order(void)
{
	struct device_stream *s = new_stream();
	struct device_event *e = new_event();
	struct device_memory m;
	const int rounds = ops == &device_host ? 2000 : 200; /* a GPU's queue holds about a thousand commands */
	int i, r = ops->alloc(device, 4096, &m, NULL);

	require(r == 0 && m.bytes >= 4096, "device memory is given");
	strcpy((char *)pinned->host, "what a stream does it does in order");
	pinned->gate = 0;
	r = close_gate(s, &pinned->gate);
	for (i = 0; i < rounds; i++) {
		r |= copy_in(s, m.base + (uint64_t)(i % 2) * 64, pinned->host, 64);
		r |= ops->copy_to_host(s, pinned->back, m.base, 64);
	}
	r |= ops->event_record(e, s);
	ok(r == 0 && ops->event_query(e) == -EBUSY && pinned->back[0] == 0,
	   "%d copies are taken at once, while the stream waits", 2 * rounds);
	ok(ops->event_wait(e, 1000000) == -ETIMEDOUT, "a wait with a limit ends at it");
	ops->word_write(&pinned->gate, 1);
	ok(ops->event_wait(e, 0) == 0 && ops->event_query(e) == 0 && memcmp(pinned->host, pinned->back, 64) == 0,
	   "and are done in order once it goes on");
	ops->stream_free(s);
	ops->event_free(e);
	ops->free(device, &m);
}

static void test_rows(void)
{
	struct device_stream *s = new_stream();
	const uint8_t *at = pinned->back;
	struct device_memory m;
	bool good = true;
	uint32_t i, j;

	for (i = 0; i < sizeof pinned->host; i++)
		pinned->host[i] = (uint8_t)below(256);
	memset(pinned->back, 0, sizeof pinned->back);
	require(ops->alloc(device, 1024, &m, NULL) == 0 && m.bytes % 4096 == 0, "memory is whole pages");
	copy_in(s, m.base, pinned->back, 1024);
	ops->copy_to_device(s, &(struct device_copy){m.base + 64, pinned->host + 7, 100, 33, 10}, 1);
	ops->copy_to_host(s, pinned->back, m.base, 1024);
	ops->stream_free(s);
	for (i = 0; i < 10; i++)
		for (j = 0; j < 33; j++)
			good &= at[64 + i * 33 + j] == pinned->host[7 + i * 100 + j];
	ok(good && at[63] == 0 && at[64 + 330] == 0, "rows are packed, and nothing else is written");
	ops->free(device, &m);
}

static void test_events(void)
{
	struct device_stream *a = new_stream(), *b = new_stream();
	struct device_event *e = new_event(), *never = new_event(), *done = new_event();

	pinned->gate = pinned->second = 0;
	ok(ops->event_query(never) == 0 && ops->event_wait(never, 0) == 0 && ops->stream_wait_event(a, never) == 0,
	   "an event that was never recorded holds nobody");
	ops->event_record(e, a);
	ops->event_wait(e, 0);
	ops->stream_wait_event(b, e); /* holds for the record before ... */
	close_gate(a, &pinned->gate);
	ops->event_record(e, a); /* ... not for this one */
	ops->event_record(done, b);
	ok(ops->event_wait(done, 0) == 0 && ops->event_query(e) == -EBUSY,
	   "a wait holds for the latest record before it was given");
	ops->stream_wait_event(b, e);
	close_gate(b, &pinned->second);
	ops->event_record(done, b);
	ops->word_write(&pinned->second, 1);
	ok(ops->event_wait(done, 2000000) == -ETIMEDOUT, "a stream waits for another stream's event");
	ops->word_write(&pinned->gate, 1);
	ok(ops->event_wait(done, 0) == 0 && ops->event_elapsed_ns(done, e) == 0, "and then goes on");
	ops->stream_free(a);
	ops->stream_free(b);
	ops->event_free(e);
	ops->event_free(never);
	ops->event_free(done);
}

/* Streams really run beside each other: without an event the copy is overtaken sooner or later, with one it never
 * is. */
static int count_overtaken(bool ordered)
{
	struct device_stream *a = new_stream(), *b = new_stream();
	struct device_event *e = new_event(), *done = new_event();
	struct device_memory m;
	int round, overtaken = 0;

	if (ops->alloc(device, 4096, &m, NULL) < 0)
		abort();
	for (round = 1; round <= 60; round++) {
		pinned->sent = (uint64_t)round;
		copy_in(a, m.base, &pinned->sent, sizeof pinned->sent);
		ops->event_record(e, a);
		if (ordered)
			ops->stream_wait_event(b, e);
		ops->copy_to_host(b, &pinned->seen, m.base, sizeof pinned->seen);
		ops->event_record(done, b);
		ops->event_wait(done, 0);
		ops->event_wait(e, 0);
		overtaken += pinned->seen != pinned->sent;
	}
	ops->stream_free(a);
	ops->stream_free(b);
	ops->event_free(e);
	ops->event_free(done);
	ops->free(device, &m);
	return overtaken;
}

static void test_jitter(void)
{
#ifndef __SANITIZE_THREAD__
	/* The race is the point of it, so the thread sanitizer must not see it, nor the simulated driver. */
	int overtaken = 0;

	device_host_jitter(seed | 1);
	for (int i = 0; i < 20 && ops == &device_host && overtaken == 0; i++)
		overtaken = count_overtaken(false);
	if (ops == &device_host)
		ok(overtaken > 0, "with jitter, copies that no event orders do go wrong");
#endif
	device_host_jitter(seed | 1);
	ok(count_overtaken(true) == 0, "with jitter, copies that an event orders never do");
	device_host_jitter(0);
}

/* Words: a stream's write is seen by the host and by other streams, with all that came before it; and a word goes
 * round. */
static void test_words(void)
{
	struct device_stream *a = new_stream(), *b = new_stream();
	struct device_memory m;
	uint32_t *word = &pinned->word, value, wrong = 0;
	struct device_event *done = new_event();

	require(ops->alloc(device, 4096, &m, NULL) == 0, "memory that two streams share");
	device_host_jitter(seed | 1);
	*word = UINT32_MAX - 100;
	for (value = *word + 2; value != 101; value += 2) {
		pinned->sent = value;
		ops->stream_wait_word(b, word, value);
		ops->copy_to_host(b, &pinned->seen, m.base, sizeof pinned->seen);
		ops->event_record(done, b);
		copy_in(a, m.base, &pinned->sent, sizeof pinned->sent);
		ops->stream_write_word(a, word, value);
		wrong += ops->word_wait(word, value, 10000000000) != 0 || ops->event_wait(done, 0) != 0;
		wrong += pinned->seen != pinned->sent || !device_word_reached(word, value) ||
			 device_word_reached(word, value + 1);
	}
	ok(wrong == 0, "what was done before a word was written is seen by whoever waits for it, also past 2^32");
	ok(ops->word_wait(word, value, 1000000) == -ETIMEDOUT, "the host's wait for a word ends at its limit");
	device_host_jitter(0);
	ops->stream_free(a);
	ops->stream_free(b);
	ops->event_free(done);
	ops->free(device, &m);
}

/* A word that goes round: nobody passes it twice, and it says when it is waited for. */
static void test_taken_words(void)
{
	struct device_stream *s = new_stream();
	struct device_event *done = new_event();
	uint32_t i, wrong = 0;

	pinned->word = pinned->waiting = 0;
	device_host_jitter(seed | 1);
	for (i = 0; i < 30; i++) {
		wrong += ops->stream_take_word(s, &pinned->word, &pinned->waiting) != 0;
		wrong += ops->event_record(done, s) != 0;
		wrong += ops->word_wait(&pinned->waiting, 1, 10000000000) != 0;
		wrong += ops->event_query(done) != -EBUSY;
		ops->word_write(&pinned->word, 1);
		wrong += ops->event_wait(done, 0) != 0 || pinned->word != 0 || pinned->waiting != 0;
	}
	device_host_jitter(0);
	ok(wrong == 0, "a taken word holds its stream each time, and is reset behind it");
	ops->stream_free(s);
	ops->event_free(done);
}

/* y += z, with z in the host's memory, on a stream that is borrowed. */
static void test_add(void)
{
	struct device_stream *s = new_stream(), *borrowed = NULL, *none = NULL;
	float *z = pinned->floats, *y = pinned->floats + 100, *sum = (float *)(void *)pinned->back;
	struct device_memory m;
	uint32_t i, wrong = 0;

	for (i = 0; i < 200; i++)
		z[i] = (float)plain_random(&seed, 1);
	z[0] = -0.0f;
	y[0] = -0.0f;
	require(ops->alloc(device, 4096, &m, NULL) == 0, "memory to add to");
	require(ops->stream_borrow(device, ops->stream_handle(s), false, &borrowed, NULL) == 0, "a stream is borrowed");
	copy_in(borrowed, m.base, y, 400);
	wrong += ops->add(borrowed, m.base, z, 99, 0) != 0;
	ops->copy_to_host(borrowed, sum, m.base, 400);
	ops->stream_return(borrowed);
	ops->stream_free(s);
	for (i = 0; i < 100; i++) {
		const float want = i < 99 ? y[i] + z[i] : y[i];

		wrong += memcmp(&sum[i], &want, sizeof want) != 0;
	}
	ok(wrong == 0, "99 numbers are added, bit by bit, and not a 100th");
	for (uintptr_t handle = 0; handle < 3; handle++)
		ok(ops->stream_borrow(device, handle, false, &none, NULL) == -EINVAL && !none,
		   "a default stream (%d) is none to borrow", (int)handle);
	ops->free(device, &m);
}

/* A launch that no memory suffices for: sanitizers are to say so too. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);

const char *__asan_default_options(void)
{
	return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void)
{
	return "allocator_may_return_null=1";
}

static void fail_stream(struct device_stream *stream)
{
	static struct moe_layout layout;
	static struct moe_slice slice = {.inter = 1u << 30};
	static const int32_t ids[1] = {-1}, map[1] = {-1};
	static const float weights[1];

	layout.part[MOE_PART_GATE].format = layout.part[MOE_PART_DOWN].format = MOE_FORMAT_BF16;
	ops->experts(stream, &(struct device_experts){.layout = &layout,
						      .slice = &slice,
						      .hidden = 1u << 30,
						      .tokens = 1u << 31,
						      .topk = 1u << 15,
						      .n_experts = 1,
						      .ids = ids,
						      .weights = weights,
						      .map = map});
}

static void test_poison(void)
{
	struct device_stream *a = new_stream(), *b = new_stream();
	struct device_event *e = new_event(), *other = new_event();
	uint8_t from[8] = "failed", to[8] = {0};

	fail_stream(a);
	ops->copy_to_host(a, to, (uintptr_t)from, sizeof to);
	ops->event_record(e, a);
	ok(ops->event_wait(e, 0) == -ENOMEM && ops->event_query(e) == -ENOMEM,
	   "a failed command's error reaches who waits");
	ok(to[0] == 0, "what follows it is skipped");
	ok(ops->copy_to_host(a, to, (uintptr_t)from, sizeof to) == -ENOMEM, "a poisoned stream says so");
	ok(ops->stream_error(a) == -ENOMEM && ops->stream_error(b) == 0, "and only that one does");
	ok(ops->event_record(e, a) == 0 && ops->event_wait(e, 0) == -ENOMEM, "records are still reached");
	ops->stream_wait_event(b, e);
	ops->copy_to_host(b, to, (uintptr_t)from, sizeof to);
	ops->event_record(other, b);
	ok(ops->event_wait(other, 0) == -ENOMEM && to[0] == 0,
	   "a stream that waits for a poisoned one is poisoned too");
	ops->stream_free(a);
	ops->stream_free(b);
	ops->event_free(e);
	ops->event_free(other);
}

static void test_memory(void)
{
	struct device_memory m;
	uint64_t bytes = 0;
	void *map = NULL;

	require(ops->alloc(device, 5000, &m, NULL) == 0, "memory to export");
	ok(memfd_verify(m.export_fd, 8192, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, &bytes, "export", NULL) == 0 &&
		   bytes == m.bytes,
	   "its file is a memfd with sealed size");
	require(memfd_map(&map, m.export_fd, m.bytes, PROT_READ | PROT_WRITE, "export", NULL) == 0, "it can be mapped");
	((uint8_t *)map)[4999] = 77;
	ok(((uint8_t *)(uintptr_t)m.base)[4999] == 77, "and what is pushed into it is seen");
	munmap(map, m.bytes);
	ops->free(device, &m);
	ok(m.base == 0 && m.export_fd == -1, "freed memory is nothing");
	ok(ops->alloc(device, 0, &m, NULL) == -EINVAL && ops->alloc(device, UINT64_MAX, &m, NULL) == -EINVAL,
	   "no bytes, or too many, are refused");
}

static void test_names(void)
{
	const struct device_ops *found = NULL;
	const char *which = NULL;
	struct moe_error err = {0};

	ok(device_find("host", &found, &which, NULL) == 0 && found == &device_host && which[0] == '\0' &&
		   device_find("abacus", &found, &which, &err) == -EINVAL && strstr(err.text, "expected 'host'"),
	   "back-ends are found by name");
	ok(device_find("host:2", &found, &which, NULL) == 0 && strcmp(which, "2") == 0 &&
		   found->open(&device, which, &err) == -EINVAL,
	   "and one of several of its devices by number; of hosts there is one: %s", err.text);
	ok(device_find("hos", &found, &which, NULL) == -EINVAL && device_find("", &found, &which, NULL) == -EINVAL,
	   "half a name is none");
}

struct launch {
	struct moe_layout layout;
	struct moe_slice slice;
	struct device_experts work;
	struct plain_values *values;
	float *x, *weights;
	int32_t *ids, *map;
	struct device_memory slots, y;
};

/* Random sizes that the formats allow, one rank's slice of any tp_size. */
static void launch_shape(struct launch *l, uint32_t gate_up, uint32_t down)
{
	const uint32_t gate_multiple = plain_multiple(gate_up), down_multiple = plain_multiple(down);
	const uint32_t hidden = gate_multiple * (1 + below(gate_multiple > 1 ? 3 : 90));
	const uint32_t inter = down_multiple * (1 + below(down_multiple > 1 ? 3 : 90));
	uint32_t size;

	plain_layout(&l->layout, gate_up, down, hidden, inter, below(2));
	size = 1 + below(MIN(moe_slice_units(&l->layout), 5u));
	moe_slice_of(&l->slice, &l->layout, below(size), size);
	l->work = (struct device_experts){.layout = &l->layout,
					  .slice = &l->slice,
					  .slot_bytes = l->slice.bytes + 64 * below(3),
					  .hidden = hidden,
					  .activation = below(4),
					  .limit = 0.5f,
					  .tokens = 1 + below(below(2) ? 4 : 40),
					  .n_experts = 2 + below(4)};
	l->work.topk = 1 + below(l->work.n_experts);
}

static void launch_init(struct launch *l, uint32_t gate_up, uint32_t down)
{
	uint32_t tokens, topk, experts, e, t, k;
	uint8_t *record;

	launch_shape(l, gate_up, down);
	tokens = l->work.tokens, topk = l->work.topk, experts = l->work.n_experts;
	record = malloc(l->layout.record_bytes);
	l->values = calloc(experts, sizeof *l->values);
	l->map = malloc(experts * sizeof *l->map);
	l->x = malloc(tokens * l->work.hidden * sizeof *l->x);
	l->ids = malloc(tokens * topk * sizeof *l->ids);
	l->weights = malloc(tokens * topk * sizeof *l->weights);
	if (!record || !l->values || !l->map || !l->x || !l->ids || !l->weights ||
	    ops->alloc(device, experts * l->work.slot_bytes, &l->slots, NULL) < 0 ||
	    ops->alloc(device, tokens * l->work.hidden * sizeof(float), &l->y, NULL) < 0)
		abort();
	for (e = 0; e < experts; e++) {
		l->map[e] = below(3) ? (int32_t)(experts - 1 - e) : -1;
		plain_fill_record(&l->layout, record, &seed);
		plain_decode(&l->values[e], &l->layout, record);
		plain_pack(&l->slice, record,
			   (uint8_t *)(uintptr_t)l->slots.base + (experts - 1 - e) * l->work.slot_bytes);
	}
	free(record);
	for (t = 0; t < tokens * l->work.hidden; t++)
		l->x[t] = (float)plain_random(&seed, 1);
	for (t = 0; t < tokens; t++) {
		for (k = 0; k < topk; k++) {
			l->ids[t * topk + k] = below(8) ? (int32_t)((t + k) % experts) : -1;
			l->weights[t * topk + k] = (float)plain_random(&seed, 1);
		}
	}
	memset((void *)(uintptr_t)l->y.base, 0xff, tokens * l->work.hidden * sizeof(float));
}

/* The largest distance from the plain result, as a share of its terms' magnitude. */
static double launch_error(const struct launch *l)
{
	const struct device_experts *w = &l->work;
	const float *y = (const float *)(uintptr_t)l->y.base;
	double *want = calloc(w->hidden, sizeof *want), *magnitude = calloc(w->hidden, sizeof *want), worst = 0;
	uint32_t t, k, j;

	for (t = 0; t < w->tokens; t++) {
		memset(want, 0, w->hidden * sizeof *want);
		memset(magnitude, 0, w->hidden * sizeof *magnitude);
		for (k = 0; k < w->topk; k++) {
			const int32_t id = l->ids[t * w->topk + k];

			if (id >= 0 && l->map[id] >= 0)
				plain_expert(&l->values[id], w->activation, (double)w->limit, l->slice.first,
					     l->slice.inter, (double)l->weights[t * w->topk + k], l->x + t * w->hidden,
					     want, magnitude);
		}
		for (j = 0; j < w->hidden; j++) {
			const double error = fabs(want[j] - (double)y[t * w->hidden + j]) / (magnitude[j] + 1e-9);

			worst = error > worst || isnan(error) ? error : worst;
		}
	}
	free(want);
	free(magnitude);
	return worst;
}

static void launch_fini(struct launch *l)
{
	for (uint32_t e = 0; e < l->work.n_experts; e++)
		plain_forget(&l->values[e]);
	free(l->values);
	free(l->map);
	free(l->x);
	free(l->ids);
	free(l->weights);
	ops->free(device, &l->slots);
	ops->free(device, &l->y);
}

/* Returns the error as a share of what is allowed. */
static double launch_once(const struct kernels *kernels, uint32_t gate_up, uint32_t down)
{
	struct device_stream *s = new_stream();
	struct device_memory x;
	struct launch l;
	double error;
	int r;

	launch_init(&l, gate_up, down);
	if (ops->alloc(device, l.work.tokens * l.work.hidden * sizeof(float), &x, NULL) < 0)
		abort();
	copy_in(s, x.base, l.x, l.work.tokens * l.work.hidden * sizeof(float));
	l.work.slots = l.slots.base;
	l.work.x = x.base;
	l.work.y = l.y.base;
	l.work.ids = l.ids;
	l.work.weights = l.weights;
	l.work.map = l.map;
	r = ops->experts(s, &l.work);
	ops->stream_free(s);
	error = r == 0 ? launch_error(&l) / plain_tolerance(kernels, &l.layout) : INFINITY;
	if (!(error < 1))
		diag("%s and %s, hidden %u, rank's %u from %u, %u tokens: error %.2e of what is allowed",
		     moe_formats[gate_up].name, moe_formats[down].name, l.work.hidden, l.slice.inter, l.slice.first,
		     l.work.tokens, error);
	ops->free(device, &x);
	launch_fini(&l);
	return error;
}

static void test_experts(enum isa isa)
{
	const struct kernels *kernels = kernels_get(isa);
	double worst = 0;

	ops->close(device);
	device_host_kernels(kernels);
	require(ops->open(&device, "", NULL) == 0, "a device that computes with %s", isa_name(isa));
	for (uint32_t format = 1; format < MOE_FORMAT_COUNT; format++) {
		for (int round = 0; round < 4; round++) {
			const uint32_t down = round % 2 ? 1 + below(MOE_FORMAT_COUNT - 1) : format;
			const double error = launch_once(kernels, format, down);

			worst = error > worst || isnan(error) ? error : worst;
		}
	}
	ok(worst < 1, "experts by %s: every format and activation, any slice: error %.2e of what is allowed",
	   isa_name(isa), worst);
}

int main(void)
{
	const char *name = getenv("MOE_TEST_DEVICE"), *which;

	name = name ? name : "host";
	seed = tap_seed();
	if (device_find(name, &ops, &which, NULL) < 0)
		return 2;
	test_names();
	require(ops->open(&device, which, NULL) == 0, "device %s opens", name);
	pin();
	test_order();
	test_rows();
	test_events();
	test_jitter();
	test_words();
	test_taken_words();
	test_add();
	if (ops == &device_host) {
		test_poison();
		test_memory();
		test_experts(ISA_REF);
		test_experts(isa_detect(NULL));
	}
	ops->close(device);
	munmap(pinned, ALIGN_UP(sizeof *pinned, 4096));
	return tap_done();
}
