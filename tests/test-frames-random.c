/* SPDX-License-Identifier: MIT */
/* frames at random, under any policy and while it changes: asks, leases, hints, failures and cancellations beside
 * plain books. */
#include "model/pool-size.h"
#include "tests/frames-world.h"

static unsigned long long random_state;

static uint32_t n_users; /* of this run */

static uint32_t random_below(uint32_t n)
{
	return (uint32_t)(tap_random(&random_state) % n);
}

static void random_ask(struct world *w, struct test_ask *t)
{
	static uint32_t last;
	const uint32_t row = random_below(3) ? (last + 1) % ROWS : random_below(ROWS);
	uint64_t experts = random_below(1u << EXPERTS);

	if (!experts)
		experts = (1u << EXPERTS) - 1;
	open_ask_of(w, t, random_below(n_users), row, experts, random_below(FRAMES_CLASSES), row < last);
	last = row;
}

static uint32_t leases[USERS][RECORDS]; /* who has which */

static void random_lease(struct world *w)
{
	for (uint32_t i = 0; i < ASKS; i++) {
		const uint32_t record = asks[i].ready ? record_at(asks[i].ask, 0) : 0;

		const uint32_t user = random_below(n_users);

		if (!asks[i].ready || !frames_reserve_lease(w->frames, user_of(w, user)))
			continue;
		frames_lease(w->frames, user_of(w, user), record);
		leases[user][record]++;
		w->leases[record]++;
		return;
	}
}

static void unlease(struct world *w, uint32_t user, uint32_t record)
{
	frames_unlease(w->frames, user_of(w, user), record);
	leases[user][record]--;
	w->leases[record]--;
}

static void random_unlease(struct world *w)
{
	const uint32_t first = random_below(RECORDS), user = random_below(n_users);

	for (uint32_t i = 0; i < RECORDS; i++) {
		const uint32_t record = (first + i) % RECORDS;

		if (!leases[user][record])
			continue;
		unlease(w, user, record);
		return;
	}
}

static const struct policy_ops *random_policy(void)
{
	const struct policy_ops *p;

	do
		p = policy_at(random_below(13));
	while (!p || p->slots_only);
	return p;
}

static void random_step(struct world *w)
{
	struct test_ask *t = &asks[random_below(ASKS)];
	const uint64_t bits = random_below(1u << EXPERTS);
	const uint32_t frame = random_below(w->n_frames);

	if (random_below(200) == 0 && frames_set_policy(w->frames, random_policy()) < 0)
		blame(w, "the policy was not changed");
	switch (random_below(10)) {
	case 0:
	case 1:
	case 2:
		if (t->open)
			close_ask(t);
		else
			random_ask(w, t);
		break;
	case 3:
		random_lease(w);
		break;
	case 4:
		random_unlease(w);
		break;
	case 5:
		frames_hint(w->frames, w->mine[random_below(2)], random_below(ROWS), random_below(4) ? &bits : NULL,
			    NULL);
		break;
	case 6:
		frames_pump(w->frames);
		break;
	default:
		if (w->reading[frame])
			end_read(w, frame, random_below(12) ? 0 : -EIO);
	}
}

static void check_level(struct world *w)
{
	struct frames_level level;
	uint32_t there = 0, reading = 0, pinned = 0, leased = 0;

	frames_level(w->frames, &level);
	for (uint32_t i = 0; i < RECORDS; i++) {
		there += w->at[i] != FRAMES_NONE;
		pinned += w->pins[i] || w->leases[i];
		leased += w->leases[i] != 0;
		if (frames_of(w->frames, i) != w->at[i])
			blame(w, "a record is elsewhere than its reads say");
	}
	for (uint32_t i = 0; i < w->n_frames; i++)
		reading += w->reading[i];
	if (level.free != w->n_frames - there || level.reading != reading || level.ready != there - reading ||
	    level.leased != leased || level.pinned < pinned)
		blame(w, "the levels are not those of the books");
	if (leased > w->n_frames - EXPERTS)
		blame(w, "leases hold so many frames that a layer finds no room");
}

/* Whoever waits goes on at last, when nobody asks for anything new. */
static void finish_world(struct world *w)
{
	uint32_t open = ASKS;

	for (int turn = 0; turn < 1000 && open; turn++) {
		end_reads(w);
		frames_pump(w->frames);
		open = 0;
		for (uint32_t i = 0; i < ASKS; i++) {
			if (asks[i].open && asks[i].status != 1)
				close_ask(&asks[i]);
			open += asks[i].open;
		}
	}
	if (open)
		blame(w, "an ask waits for ever");
	end_reads(w);
	while (frames_pump(w->frames))
		end_reads(w);
}

static void test_random(void)
{
	uint64_t waits = 0, evictions = 0, used = 0, failures = 0;
	const char *wrong = NULL;
	struct world w;

	for (int run = 0; run < 200 && !wrong; run++) {
		const uint32_t n = (uint32_t)pool_frames_min(EXPERTS, 2) + random_below(FRAMES_MAX - EXPERTS - 2);

		world_policy = random_policy();
		n_users = random_below(2) ? USERS : 1;
		begin(&w, n, random_below((n < RECORDS ? n : RECORDS) + 1));
		for (int i = 0; i < 2000 && !w.wrong; i++) {
			random_step(&w);
			check_level(&w);
		}
		finish_world(&w);
		check_level(&w);
		for (uint32_t i = 0; i < USERS * RECORDS; i++)
			while (leases[i / RECORDS][i % RECORDS])
				unlease(&w, i / RECORDS, i % RECORDS);
		if (w.counters.reads != w.n_reads || w.counters.read_bytes != 100 * w.n_reads ||
		    w.counters.evictions + w.counters.failures != w.n_gone ||
		    w.counters.prefetch_used + w.counters.prefetch_wasted > w.counters.prefetches)
			blame(&w, "the counters do not balance");
		wrong = w.wrong;
		waits += w.counters.waits;
		evictions += w.counters.evictions;
		used += w.counters.prefetch_used;
		failures += w.counters.failures;
		end(&w);
	}
	ok(!wrong, "no law broken at random (%s)", wrong ? wrong : "200 runs of 2000 steps");
	ok(waits > 1000 && evictions > 1000 && used > 20 && failures > 100,
	   "and there was something to break: %llu waits, %llu evictions, %llu prefetches used, %llu failures",
	   (unsigned long long)waits, (unsigned long long)evictions, (unsigned long long)used,
	   (unsigned long long)failures);
}

int main(void)
{
	random_state = tap_seed();
	test_random();
	return tap_done();
}
