/* SPDX-License-Identifier: MIT */
/*
 * Steps on a stream of the caller's, with x and y in the device's memory: the caller writes x, submits, reads y and
 * spoils x again, all of it given to the stream at once, and never waits in between. Streams pause at random; what is
 * not ordered reads NaNs or is a race that the simulated driver sees.
 */
#include <errno.h>

#include "tests/engine-jobs.h"

#define ROWS (TOKENS * HIDDEN)
#define BYTES (ROWS * sizeof(float))
#define PLACES 8 /* more fills in flight than the engine has spare places */

/* What a framework has: streams, memory of the device, memory of the host that it has registered. */
struct place {
	struct job job;
	struct moe_stream *stream;
	device_ptr x, y;
	float *x_host, *y_host, *spoiled; /* registered */
};

struct caller {
	struct fake *fake;
	const struct device_ops *ops;
	struct device *device;
	struct device_memory memory;
	float *host;
	struct place places[PLACES];
};

static void caller_init(struct caller *c, struct fake *f)
{
	struct moe_error err = {0};
	uint32_t i;

	*c = (struct caller){.fake = f, .ops = f->session.engine->ops, .device = f->session.engine->device};
	c->host = fake_map(4096 * 4 * PLACES);
	if (c->ops->alloc(c->device, (uint64_t)PLACES * 2 * BYTES, &c->memory, &err) < 0 ||
	    c->ops->host_register(c->device, c->host, 4096 * 4 * PLACES, true, &err) < 0)
		abort();
	for (i = 0; i < PLACES; i++) {
		struct place *p = &c->places[i];

		if (moe_stream_new(&f->session, &p->stream, &err) < 0)
			abort();
		p->x = c->memory.base + (uint64_t)2 * i * BYTES;
		p->y = p->x + BYTES;
		p->x_host = c->host + (size_t)i * 4096;
		p->y_host = p->x_host + ROWS;
		p->spoiled = p->y_host + ROWS;
		memset(p->spoiled, 0xff, BYTES);
	}
}

static void caller_fini(struct caller *c)
{
	for (uint32_t i = 0; i < PLACES; i++)
		moe_stream_free(c->places[i].stream);
	c->ops->free(c->device, &c->memory);
	fake_free(c->fake);
	munmap(c->host, 4096 * 4 * PLACES);
}

static struct device_stream *stream_of(const struct caller *c, const struct place *p)
{
	struct device_stream *stream = NULL;

	if (c->ops->stream_borrow(c->device, moe_stream_handle(p->stream), false, &stream, NULL) < 0)
		abort();
	return stream;
}

static void to_device(const struct caller *c, struct device_stream *s, device_ptr to, const float *from)
{
	c->ops->copy_to_device(s, &(struct device_copy){to, from, BYTES, BYTES, 1}, 1);
}

/* All of it is given to the stream; nobody waits. */
static int place_submit(struct caller *c, struct place *p, enum moe_mode mode, struct moe_error *err)
{
	struct device_stream *s = stream_of(c, p);
	struct moe_plan *plan;
	int r = job_plan(c->fake, &p->job, mode, &plan, err);

	if (r == 0) {
		memcpy(p->x_host, p->job.x, BYTES);
		to_device(c, s, p->y, p->spoiled);
		to_device(c, s, p->x, p->x_host);
		r = moe_submit_on(&c->fake->session, plan, moe_stream_handle(p->stream), p->x, p->y, &p->job.step, err);
		to_device(c, s, p->x, p->spoiled);
		c->ops->copy_to_host(s, p->y_host, p->y, BYTES);
	}
	c->ops->stream_return(s);
	return r;
}

/* 0, the error's code, or 1 when the numbers are wrong. Either end comes first. */
static int place_wait(struct caller *c, struct place *p, struct moe_error *err)
{
	const bool stream_first = below(2);
	int r, stream = 0;

	if (stream_first)
		stream = moe_stream_wait(p->stream, 0, err);
	r = moe_wait(p->job.step, NULL, 0, err);
	if (!stream_first)
		stream = moe_stream_wait(p->stream, 0, err);
	r = r == 0 ? stream : r;
	return r == 0 && job_error(c->fake, &p->job, p->y_host) > 1 ? 1 : r;
}

/* A step in flight on each of several streams, and some of the host's own between them. layer 0: any. */
static int run_many(struct caller *c, enum moe_mode mode, uint32_t layer, int steps)
{
	bool busy[PLACES] = {false};
	int wrong = 0, left = steps, flying = 0;

	while (left > 0 || flying > 0) {
		const uint32_t i = below(PLACES);
		struct place *p = &c->places[i];
		struct moe_error err = {0};
		int r = 0;

		if (busy[i]) {
			r = place_wait(c, p, &err);
			busy[i] = false;
			flying--;
		} else if (left > 0) {
			job_init(&p->job);
			p->job.layer = layer ? layer : p->job.layer;
			left--;
			if (below(5) == 0) {
				r = job_run(c->fake, &p->job, mode);
			} else {
				r = place_submit(c, p, mode, &err);
				busy[i] = r == 0;
				flying += busy[i];
			}
		}
		if (r != 0 && wrong++ == 0)
			diag("%d: %s", r, err.text);
	}
	return wrong;
}

static void test_many(const char *name, enum moe_fill fill, enum moe_mode mode, uint32_t slots, uint32_t miss,
		      uint32_t layer)
{
	struct moe_attach_params p = default_params();
	struct caller c;
	int wrong;

	p.fill = fill;
	p.answers = fill == MOE_FILL_PULL ? MOE_ANSWERS_COPY : MOE_ANSWERS_READ;
	p.max_steps = PLACES;
	p.cache_expert_num = slots;
	p.miss_expert_num = miss;
	caller_init(&c, open_fake(&p));
	if (layer) /* and so without spare places: each fill waits for who reads its slot */
		c.fake->session.engine->places.n_spare = 0;
	wrong = run_many(&c, mode, layer, 120);
	ok(wrong == 0 && c.fake->breaches == 0 && c.fake->leases_held == 0, "%s: %d wrong of 120", name, wrong);
	caller_fini(&c);
}

/* One token that wants the CPU for one of its experts at least. */
static void place_job(struct place *p, uint32_t layer)
{
	uint32_t i;

	p->job = (struct job){
		.layer = layer, .tokens = 1, .topk = 3, .ids = {1, 2, 3}, .weights = {1, -1, 0.5f}, .pairs = 3};
	for (i = 0; i < HIDDEN; i++)
		p->job.x[i] = (float)plain_random(&seed, 1);
}

static void test_failed_compute(void)
{
	struct moe_attach_params p = default_params();
	struct moe_error err = {0};
	struct caller c;
	int r, stream;

	caller_init(&c, open_fake(&p));
	place_job(&c.places[0], 1);
	c.fake->fail_computes = 1;
	r = place_submit(&c, &c.places[0], MOE_MODE_DECODE, &err);
	stream = moe_stream_wait(c.places[0].stream, 0, &err);
	if (r == 0)
		r = moe_wait(c.places[0].job.step, NULL, 0, &err);
	ok(r == -EIO && stream == 0, "a failed COMPUTE fails the step, and the stream goes on: %s", err.text);
	r = place_submit(&c, &c.places[0], MOE_MODE_DECODE, &err);
	ok(r == 0 && place_wait(&c, &c.places[0], &err) == 0, "the next one on the stream is right");
	caller_fini(&c);
}

/* The daemon dies, or is silent: the caller's stream goes on soon all the same. */
static void test_lost(bool dies)
{
	struct moe_attach_params p = default_params();
	struct moe_error err = {0};
	struct caller c;
	uint64_t began;
	int r, stream;

	p.watchdog_ms = 300;
	caller_init(&c, open_fake(&p));
	place_job(&c.places[0], 1);
	c.fake->stall = true;
	r = place_submit(&c, &c.places[0], MOE_MODE_DECODE, &err);
	require(r == 0, "a step waits for a daemon that %s", dies ? "dies" : "is silent");
	if (dies)
		fake_die(c.fake);
	began = now_ns();
	stream = moe_stream_wait(c.places[0].stream, 0, &err);
	r = moe_wait(c.places[0].job.step, NULL, 0, &err);
	ok(r == (dies ? -EPIPE : -ETIME) && stream == 0 && now_ns() - began < TAP_SOON_NS, "the stream goes on: %s",
	   err.text);
	caller_fini(&c);
}

/* A step waits behind what its caller gave to the stream before, for longer than watchdog_ms: nobody else's copies wait
 * with it, or are given up. */
static void test_backlog(void)
{
	struct moe_attach_params p = default_params();
	struct moe_error err = {0};
	struct device_stream *s;
	struct caller c;
	struct job job;
	uint32_t *word, copied;
	int r, behind;

	p.watchdog_ms = 300;
	p.fill = MOE_FILL_PULL;
	p.update_expert_num = EXPERTS;
	caller_init(&c, open_fake(&p));
	word = (uint32_t *)(void *)c.places[1].x_host;
	s = stream_of(&c, &c.places[0]);
	require(c.ops->stream_wait_word(s, word, 1) == 0, "a stream is busy");
	moe_set_n_copy(&c.fake->session, 0);
	place_job(&c.places[0], 1);
	r = place_submit(&c, &c.places[0], MOE_MODE_PREFETCH, &err);
	require(r == 0, "a step waits behind it: %s", err.text);
	job = c.places[0].job;
	job.layer = 2;
	copied = c.fake->session.engine->rows[1].cache->n_cached;
	r = job_run(c.fake, &job, MOE_MODE_DECODE);
	copied = c.fake->session.engine->rows[1].cache->n_cached - copied;
	ok(r == 0 && copied > 0, "another layer's step, with %u copies, does not wait for the stream (%d)", copied, r);
	c.ops->word_write(word, 1);
	behind = place_wait(&c, &c.places[0], &err);
	ok(behind == 0, "and the step behind it is right in the end");
	c.ops->stream_return(s);
	caller_fini(&c);
}

static void test_refused(void)
{
	struct moe_attach_params p = default_params();
	struct moe_error err = {0};
	struct place *at;
	struct caller c;
	struct moe_plan *plan;
	struct moe_stream *none;
	int r[5], i;

	caller_init(&c, open_fake(&p));
	at = &c.places[0];
	for (i = 0; i < 5; i++) {
		const uintptr_t stream = i == 0 ? 0 : moe_stream_handle(at->stream);

		job_init(&at->job);
		if (job_plan(c.fake, &at->job, MOE_MODE_PREFETCH, &plan, &err) < 0)
			abort();
		r[i] = moe_submit_on(&c.fake->session, plan, stream, i == 1 ? at->x + 4 : at->x,
				     i == 2   ? 0
				     : i == 3 ? at->x + 16
					      : at->y,
				     &at->job.step, &err);
		if (i < 4)
			diag("%s", err.text);
	}
	ok(r[0] == -EINVAL && r[1] == -EINVAL && r[2] == -EINVAL && r[3] == -EINVAL && r[4] == 0 &&
		   moe_wait(at->job.step, NULL, 0, &err) == 0,
	   "no stream, an odd address, no address and the same one twice are refused, and harm nobody");
	caller_fini(&c);
	p.cache_expert_num = 0;
	c.fake = open_fake(&p);
	job_init(&at->job);
	if (job_plan(c.fake, &at->job, MOE_MODE_DECODE, &plan, &err) < 0)
		abort();
	r[0] = moe_stream_new(&c.fake->session, &none, &err);
	r[1] = moe_submit_on(&c.fake->session, plan, 16, 16, 16, &at->job.step, &err);
	ok(r[0] == -ENOTSUP && r[1] == -ENOTSUP, "without slots there is no device: %s", err.text);
	fake_free(c.fake);
}

int main(void)
{
	jobs_begin();
	test_many("decode, push", MOE_FILL_PUSH, MOE_MODE_DECODE, 4, 0, 0);
	test_many("decode, push, one layer without spare places", MOE_FILL_PUSH, MOE_MODE_DECODE, 3, 0, 2);
	test_many("decode, pull, one layer without spare places", MOE_FILL_PULL, MOE_MODE_DECODE, 3, 0, 1);
	test_many("prefetch, push", MOE_FILL_PUSH, MOE_MODE_PREFETCH, 3, 2, 0);
	test_many("full, pull", MOE_FILL_PULL, MOE_MODE_FULL, 1, 0, 0);
	test_many("every mode, pull", MOE_FILL_PULL, MOE_MODE_AUTO, 3, 3, 0);
	test_many("all experts cached", MOE_FILL_PUSH, MOE_MODE_AUTO, EXPERTS, 0, 0);
	test_failed_compute();
	test_lost(true);
	test_lost(false);
	test_backlog();
	test_refused();
	return tap_done();
}
