/* SPDX-License-Identifier: MIT */
/*
 * Places of slots: whom a copy has to wait for, against a naive list of who has read what; and in the engine, that slow
 * copies neither wait for the readers of the slots that they take, nor touch what these read, nor hold up a step that
 * does not need them.
 */
#include "step.h"
#include "tests/engine-jobs.h"

#define ROWS 3
#define SLOTS 4
#define SPARE_MOST 7
#define ARENA (ROWS * SLOTS + SPARE_MOST)
#define PATIENCE_MS 120000 /* for what must come */

/* -- the law ------------------------------------------------------------------------------------------------------ */

/* Events are only compared here: these bytes are some. */
static char events[PLACE_STREAMS][4000];

static struct place_use use_of(enum place_stream stream, uint64_t seq)
{
	return (struct place_use){(struct device_event *)&events[stream][seq], seq};
}

/* Each place is one slot's or spare. */
static bool is_partition(const struct places *p)
{
	uint32_t seen[ARENA] = {0}, i;

	for (i = 0; i < ROWS * SLOTS; i++)
		seen[p->slots[i].place]++;
	for (i = 0; i < p->n_spare; i++)
		seen[p->spare[i].place]++;
	for (i = 0; i < ROWS * SLOTS + p->n_spare; i++)
		if (seen[i] != 1)
			return false;
	return true;
}

static void test_law(uint32_t n_spare)
{
	uint64_t naive[ARENA][PLACE_STREAMS] = {{0}}, seq;
	struct place_users rows[ROWS] = {{{{0}}}};
	int early = 0, broken = 0, elsewhere = 0, fills = 0;
	struct places p;

	if (places_init(&p, ROWS, SLOTS, ROWS * SLOTS, n_spare, NULL) < 0)
		abort();
	for (seq = 1; seq < 4000; seq++) {
		const uint32_t row = below(ROWS), slot = below(SLOTS), before = places_slot(&p, row, slot)->place;
		const enum place_stream side = below(2) ? PLACE_MAIN : PLACE_ASIDE;
		const struct place_use copies = use_of(PLACE_COPY, seq);
		struct place_users users = {{{0}}};
		uint32_t at, i;

		if (below(2)) {
			places_fill(&p, row, slot, &rows[row], &copies, &users);
			at = places_slot(&p, row, slot)->place;
			for (i = 0; i < PLACE_STREAMS; i++)
				early += users.last[i].seq < naive[at][i];
			memset(naive[at], 0, sizeof naive[at]); /* these copies come after them */
			naive[at][PLACE_COPY] = seq;
			elsewhere += at != before;
			fills++;
			broken += !is_partition(&p);
		}
		for (i = 0; i < SLOTS; i++)
			naive[places_slot(&p, row, i)->place][side] = seq;
		rows[row].last[side] = use_of(side, seq);
	}
	ok(broken == 0 && early == 0, "%u spare places: %d fills, each behind all who use its place", n_spare, fills);
	ok(elsewhere == (n_spare ? fills : 0), "%u spare places: a fill goes %s", n_spare,
	   n_spare ? "elsewhere" : "to the slot's own");
	places_forget(&p, rows[0].last[0].event);
	places_fini(&p);
}

static void test_forgotten(void)
{
	const struct place_use reads = use_of(PLACE_ASIDE, 1), copies = use_of(PLACE_COPY, 2);
	struct place_users row = {{{0}}}, users = {{{0}}};
	struct places p;

	if (places_init(&p, 1, 1, 1, 1, NULL) < 0)
		abort();
	row.last[PLACE_ASIDE] = reads;
	places_fill(&p, 0, 0, &row, &copies, &users);
	ok(!users.last[PLACE_ASIDE].event, "a place that was always spare has no users");
	places_forget(&p, reads.event);
	places_fill(&p, 0, 0, &row, &copies, &users);
	ok(!users.last[PLACE_ASIDE].event, "a step that has ended uses no place any more");
	places_fini(&p);
}

/* -- the engine --------------------------------------------------------------------------------------------------- */

/* One token that wants these experts. */
static void job_of(struct job *job, uint32_t layer, uint32_t topk, const int32_t *ids)
{
	uint32_t i;

	*job = (struct job){.layer = layer, .tokens = 1, .topk = topk, .pairs = topk};
	memcpy(job->ids, ids, topk * sizeof *ids);
	for (i = 0; i < topk; i++)
		job->weights[i] = 1.0f / (float)(i + 1);
	for (i = 0; i < HIDDEN; i++)
		job->x[i] = (float)plain_random(&seed, 1);
}

/* Its experts come into slots, two at a time. */
static int warm(struct fake *f, uint32_t layer, int32_t first, uint32_t n)
{
	int wrong = 0;
	uint32_t i;

	for (i = 0; i < n; i += 2) {
		struct job job;

		job_of(&job, layer, 2, (const int32_t[]){first + (int32_t)i, first + (int32_t)i + 1});
		wrong += job_run(f, &job, MOE_MODE_DECODE) != 0;
	}
	return wrong;
}

static int submit(struct fake *f, struct job *job, uint32_t layer, int32_t a, int32_t b)
{
	job_of(job, layer, 2, (const int32_t[]){a, b});
	return job_submit(f, job, MOE_MODE_DECODE, NULL);
}

/* True: it has come, and is right. */
static bool comes(const struct fake *f, struct job *job)
{
	return moe_wait(job->step, job->y, PATIENCE_MS, NULL) == 0 && job_error(f, job, job->y) <= 1;
}

static struct moe_attach_params slow_params(enum moe_fill fill)
{
	struct moe_attach_params p = default_params();

	p.fill = fill;
	p.cache_expert_num = 4;
	p.max_steps = 8;
	p.watchdog_ms = 10 * PATIENCE_MS;
	return p;
}

/* A daemon that does not answer is a copy that takes for ever. */
static void test_nobody_waits_for_others_copies(enum moe_fill fill, const char *name)
{
	const struct moe_attach_params p = slow_params(fill);
	struct fake *f = open_fake(&p);
	struct job slow, same, other, both;
	int r = warm(f, 1, 0, 2) + warm(f, 2, 5, 2);

	f->stall = true;
	r += submit(f, &slow, 1, 2, 3);
	r += submit(f, &same, 1, 0, 1);
	r += submit(f, &other, 2, 5, 6);
	r += submit(f, &both, 1, 0, 2);
	require(r == 0, "%s: copies are under way that do not end", name);
	ok(comes(f, &same), "%s: a step on the same layer, whose experts are there, does not wait for them", name);
	ok(comes(f, &other), "%s: nor does one on another layer", name);
	ok(moe_wait(both.step, both.y, 1, NULL) == -ETIMEDOUT, "%s: one that reads what they bring does", name);
	f->stall = false;
	ok(comes(f, &slow), "%s: they end, and their step is right", name);
	r = submit(f, &both, 1, 0, 2);
	ok(r == 0 && comes(f, &both) && f->breaches == 0, "%s: what they have brought is there", name);
	fake_free(f);
}

/* A step that the device does not begin, because the caller's stream does not reach it. */
struct held {
	struct fake *fake;
	const struct device_ops *ops;
	struct device *device;
	struct device_memory memory;
	struct moe_stream *stream;
	struct device_stream *borrowed;
	uint8_t *host; /* registered: the word, x, y */
	struct job job;
};

static float *host_y(const struct held *h)
{
	return (float *)(h->host + 2048);
}

static int hold(struct held *h, struct fake *f, uint32_t layer, uint32_t topk, const int32_t *ids)
{
	const struct engine *e = f->session.engine;
	const uint64_t bytes = HIDDEN * sizeof(float);
	struct moe_plan *plan;
	struct moe_error err = {0};

	*h = (struct held){.fake = f, .ops = e->ops, .device = e->device, .host = fake_map(4096)};
	job_of(&h->job, layer, topk, ids);
	memcpy(h->host + 1024, h->job.x, bytes);
	if (h->ops->alloc(h->device, 4096, &h->memory, &err) < 0 ||
	    h->ops->host_register(h->device, h->host, 4096, true, &err) < 0 ||
	    moe_stream_new(&f->session, &h->stream, &err) < 0 ||
	    h->ops->stream_borrow(h->device, moe_stream_handle(h->stream), false, &h->borrowed, &err) < 0 ||
	    job_plan(f, &h->job, MOE_MODE_DECODE, &plan, &err) < 0)
		abort();
	h->ops->stream_wait_word(h->borrowed, (uint32_t *)h->host, 1);
	h->ops->copy_to_device(h->borrowed, &(struct device_copy){h->memory.base, h->host + 1024, bytes, bytes, 1}, 1);
	return moe_submit_on(&f->session, plan, moe_stream_handle(h->stream), h->memory.base, h->memory.base + 2048,
			     &h->job.step, &err);
}

/* True: it is right. */
static bool let_go(struct held *h)
{
	bool right;

	h->ops->word_write((uint32_t *)h->host, 1);
	right = moe_wait(h->job.step, NULL, PATIENCE_MS, NULL) == 0;
	h->ops->copy_to_host(h->borrowed, host_y(h), h->memory.base + 2048, HIDDEN * sizeof(float));
	right = right && moe_stream_wait(h->stream, 0, NULL) == 0 && job_error(h->fake, &h->job, host_y(h)) <= 1;
	return right;
}

static void held_fini(struct held *h)
{
	h->ops->stream_return(h->borrowed);
	moe_stream_free(h->stream);
	h->ops->free(h->device, &h->memory);
}

/* Whether a place that the later step's copies go to is one that the earlier step reads. */
static bool meet(const struct moe_step *later, const struct moe_step *earlier)
{
	uint32_t i, k;

	for (i = 0; i < later->plan->n_copies; i++)
		for (k = 0; k < earlier->plan->n_experts; k++)
			if (earlier->map[k] >= 0 && (uint32_t)earlier->map[k] == later->places[i])
				return true;
	return false;
}

static void test_copies_do_not_wait_for_readers(enum moe_fill fill, const char *name)
{
	const struct moe_attach_params p = slow_params(fill);
	struct fake *f = open_fake(&p);
	struct job first, second, third;
	struct held reader;
	bool apart, meets;
	int r = warm(f, 1, 0, 4);

	r += hold(&reader, f, 1, 4, (const int32_t[]){0, 1, 2, 3});
	require(r == 0, "%s: a step reads four slots and does not end", name);
	r = submit(f, &first, 2, 8, 9);
	apart = !meet(first.step, reader.job.step);
	/* Its compute is aside, since it waits for copies: the main stream is held up. */
	ok(r == 0 && apart && comes(f, &first), "%s: copies for another layer come, and so does their step", name);
	r = submit(f, &second, 1, 4, 5);
	apart = !meet(second.step, reader.job.step);
	ok(r == 0 && apart && comes(f, &second), "%s: copies that take two of its slots come, elsewhere", name);
	/* Two spare places are left that the second one has let go of: the reader's. */
	r = submit(f, &third, 1, 6, 7);
	r += submit(f, &first, 1, 8, 9);
	meets = meet(first.step, reader.job.step) || meet(third.step, reader.job.step);
	ok(r == 0 && meets, "%s: when no spare place is left that nobody reads, copies come to those", name);
	ok(let_go(&reader), "%s: and wait: what the first step read was whole until its end", name);
	ok(comes(f, &third) && comes(f, &first) && f->breaches == 0, "%s: then they come", name);
	held_fini(&reader);
	fake_free(f);
	munmap(reader.host, 4096);
}

int main(void)
{
	uint32_t n;

	jobs_begin();
	for (n = 0; n <= SPARE_MOST; n++)
		test_law(n);
	test_forgotten();
	test_nobody_waits_for_others_copies(MOE_FILL_PUSH, "push");
	test_nobody_waits_for_others_copies(MOE_FILL_PULL, "pull");
	test_copies_do_not_wait_for_readers(MOE_FILL_PUSH, "push");
	test_copies_do_not_wait_for_readers(MOE_FILL_PULL, "pull");
	return tap_done();
}
