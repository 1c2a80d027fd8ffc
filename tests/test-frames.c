/* SPDX-License-Identifier: MIT */
/* frames - who gets which frame of a tiered model: random asks, leases, hints, failures and cancellations beside plain
 * books, and the rules one by one. The reads are the test's own. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "daemon/frames.h"
#include "tap.h"

#define ROWS 5u
#define EXPERTS 6u
#define RECORDS (ROWS * EXPERTS)
#define FRAMES_MAX 32u
#define ASKS 24u

/* What the frames have been told and have asked for. */
struct world {
	struct frames *frames;
	struct frames_counters counters;
	uint32_t table[FRAMES_MAX];
	uint32_t n_frames;
	uint32_t at[RECORDS];     /* by read and gone */
	bool reading[FRAMES_MAX]; /* a read was asked for and has not ended */
	bool urgent[FRAMES_MAX];  /* the latest */
	uint64_t mine[2][ROWS];   /* what two who hint have hinted */
	uint32_t pins[RECORDS];   /* plain books: of READY asks */
	uint32_t leases[RECORDS];
	uint64_t n_gone, n_reads;
	uint32_t gone[256]; /* in their order, the latest 256 */
	const char *wrong;  /* the first law that was broken */
};

struct test_ask {
	struct world *world;
	bool open, ready;
	int status; /* of `ready`; 1: not called */
	struct frames_ask *ask;
};

static unsigned long long random_state;

static uint32_t random_below(uint32_t n)
{
	return (uint32_t)(tap_random(&random_state) % n);
}

static void blame(struct world *w, const char *what)
{
	if (!w->wrong)
		w->wrong = what;
}

static void on_read(void *userdata, uint32_t record, uint32_t frame, bool urgent)
{
	struct world *w = userdata;

	if (record >= RECORDS || frame >= w->n_frames)
		blame(w, "a read of what is not there");
	else if (w->at[record] != FRAMES_NONE)
		blame(w, "a read of a record that has a frame");
	else if (w->reading[frame])
		blame(w, "a frame given away while something is read into it");
	for (uint32_t i = 0; i < RECORDS; i++)
		if (w->at[i] == frame)
			blame(w, "a frame given away that has a record");
	if (w->table[frame])
		blame(w, "a read into a frame whose table entry stands");
	w->at[record] = frame;
	w->reading[frame] = true;
	w->urgent[frame] = urgent;
	w->n_reads++;
}

static void on_hurry(void *userdata, uint32_t frame)
{
	struct world *w = userdata;

	if (!w->reading[frame] || w->urgent[frame])
		blame(w, "a read is hurried that is over, or was urgent");
	w->urgent[frame] = true;
}

static void on_gone(void *userdata, uint32_t record)
{
	struct world *w = userdata;

	if (w->pins[record] || w->leases[record])
		blame(w, "a pinned record has lost its frame");
	w->gone[w->n_gone++ % ARRAY_LEN(w->gone)] = record;
	w->at[record] = FRAMES_NONE;
}

static void begin(struct world *w, uint32_t n_frames, uint32_t n_there)
{
	const struct frames_params params = {.rows = ROWS,
					     .experts = EXPERTS,
					     .frames = n_frames,
					     .policy = &policy_lru,
					     .table = w->table,
					     .counters = &w->counters,
					     .read = on_read,
					     .hurry = on_hurry,
					     .gone = on_gone,
					     .userdata = w};

	*w = (struct world){.n_frames = n_frames};
	memset(w->at, 0xff, sizeof w->at);
	for (uint32_t i = 0; i < n_there; i++) {
		w->table[i] = i + 1;
		w->at[i] = i;
	}
	if (frames_new(&w->frames, &params) < 0)
		exit(1);
}

static void on_ready(struct frames_ask *ask, int status);

static struct test_ask asks[ASKS];

static struct test_ask *owner(const struct frames_ask *ask)
{
	for (uint32_t i = 0; i < ASKS; i++)
		if (asks[i].ask == ask)
			return &asks[i];
	return NULL;
}

static uint32_t record_at(const struct frames_ask *ask, uint32_t i)
{
	return ask->row * EXPERTS + ask->experts[i];
}

/* From now on its records must be there, and stay. */
static void check_ready(struct test_ask *t)
{
	struct world *w = t->world;

	for (uint32_t i = 0; i < t->ask->n; i++) {
		const uint32_t record = record_at(t->ask, i), frame = w->at[record];

		if (frame == FRAMES_NONE || w->reading[frame] || frames_of(w->frames, record) != frame)
			blame(w, "an ask is ready and a record of it is not");
		else if (w->table[frame] != record + 1)
			blame(w, "a record that is ready is not in the table");
		w->pins[record]++;
	}
	t->ready = true;
}

static void on_ready(struct frames_ask *ask, int status)
{
	struct test_ask *t = owner(ask);

	if (!t || !t->open || t->ready || t->status != 1) {
		blame(t ? t->world : asks[0].world, "ready for an ask that does not wait");
		return;
	}
	t->status = status;
	if (status == 0)
		check_ready(t);
}

static void open_ask(struct world *w, struct test_ask *t, uint32_t row, uint64_t experts, uint32_t class, bool wraps)
{
	struct frames_ask *ask = calloc(1, sizeof *ask + EXPERTS * sizeof ask->experts[0]);

	if (!ask)
		exit(1);
	*ask = (struct frames_ask){.row = row, .class = class, .wraps = wraps, .ready = on_ready};
	for (uint32_t e = 0; e < EXPERTS; e++)
		if (experts >> e & 1)
			ask->experts[ask->n++] = e;
	*t = (struct test_ask){.world = w, .open = true, .status = 1, .ask = ask};
	if (frames_ask(w->frames, ask)) {
		t->status = 0;
		check_ready(t);
	}
}

static void close_ask(struct test_ask *t)
{
	struct world *w = t->world;

	for (uint32_t i = 0; t->ready && i < t->ask->n; i++)
		w->pins[record_at(t->ask, i)]--;
	if (t->ready)
		frames_release(w->frames, t->ask);
	else if (t->status == 1)
		frames_cancel(w->frames, t->ask);
	free(t->ask);
	*t = (struct test_ask){0};
}

static void end_read(struct world *w, uint32_t frame, int status)
{
	w->reading[frame] = false;
	frames_read_done(w->frames, frame, status, 100);
}

/* All reads, in the order of the frames. */
static void end_reads(struct world *w)
{
	for (uint32_t i = 0; i < w->n_frames; i++)
		if (w->reading[i])
			end_read(w, i, 0);
}

/* -- the rules ---------------------------------------------------------------------------------------------------- */

static void test_all_or_nothing(void)
{
	struct world w;

	begin(&w, 8, 0);
	open_ask(&w, &asks[0], 0, 0x3f, 0, false);
	ok(asks[0].status == 1 && w.n_reads == 6, "an ask for six records begins six reads");
	open_ask(&w, &asks[1], 1, 0x07, 0, false);
	ok(w.n_reads == 6 && asks[1].ask->state == ASK_WAITS, "two frames are left: an ask for three takes none");
	open_ask(&w, &asks[2], 1, 0x03, 0, false);
	ok(w.n_reads == 6 && asks[2].ask->state == ASK_WAITS, "nor does one for two that came after it");
	open_ask(&w, &asks[3], 2, 0x01, 1, false);
	ok(asks[3].ask->state == ASK_WAITS, "nor one of a later class");
	end_read(&w, w.at[0], 0);
	ok(asks[0].status == 1, "five reads are missing: it waits");
	end_reads(&w);
	ok(asks[0].status == 0, "it goes on with the last");
	frames_pump(w.frames);
	ok(asks[1].ask->state == ASK_WAITS, "what it has pinned stays");
	close_ask(&asks[0]);
	ok(frames_pump(w.frames) && asks[1].ask->state == ASK_READS && asks[2].ask->state == ASK_READS &&
		   asks[3].ask->state == ASK_READS,
	   "released, its frames are for those that wait");
	end_reads(&w);
	ok(asks[1].status == 0 && asks[2].status == 0 && asks[3].status == 0 && !w.wrong, "which go on (%s)",
	   w.wrong ? w.wrong : "no law broken");
	for (int i = 1; i < 4; i++)
		close_ask(&asks[i]);
	frames_free(w.frames);
}

static void test_order(void)
{
	struct world w;
	struct frames_level level;

	begin(&w, 12, 12); /* rows 0 and 1 */
	open_ask(&w, &asks[0], 2, 0x01, 0, false);
	ok(w.gone[0] / EXPERTS == 1, "asked for row 2, of what was never used row 1 goes: its turn comes last");
	ok(w.gone[0] % EXPERTS == 0, "of it the one that the policy names");
	end_reads(&w);
	close_ask(&asks[0]);
	/* A pass over all rows: rows 0 .. 2 are there, what was used in this pass ties, the row just done goes. */
	for (uint32_t row = 0; row < 2; row++) {
		open_ask(&w, &asks[0], row, 0x3f, 0, row == 0);
		end_reads(&w);
		close_ask(&asks[0]);
	}
	w.n_gone = 0;
	open_ask(&w, &asks[0], 2, 0x3f, 0, false);
	end_reads(&w);
	close_ask(&asks[0]);
	ok(w.n_gone >= 5 && w.gone[w.n_gone - 1] / EXPERTS == 1, "all used in this pass: the row before makes room");
	ok(w.at[0] != FRAMES_NONE && w.at[EXPERTS - 1] != FRAMES_NONE, "the next pass finds row 0");
	/* A new pass uses some of row 0; the rest of it is then older than row 2. */
	open_ask(&w, &asks[0], 0, 0x03, 0, true);
	ok(asks[0].status == 0, "which it does");
	close_ask(&asks[0]);
	open_ask(&w, &asks[0], 2, 0x3f, 0, false);
	ok(asks[0].status == 0, "and row 2");
	close_ask(&asks[0]);
	w.n_gone = 0;
	open_ask(&w, &asks[0], 4, 0x01, 0, false);
	ok(w.n_gone == 1 && w.gone[0] == 2, "of row 0 what was not used in this pass goes first (%u)", w.gone[0]);
	end_reads(&w);
	close_ask(&asks[0]);
	frames_level(w.frames, &level);
	ok(level.frames == 12 && level.ready == 12 && level.pinned == 0 && level.waiting == 0 && level.free == 0,
	   "the levels say so");
	frames_free(w.frames);
}

static void test_leases(void)
{
	struct world w;

	begin(&w, 8, 8);
	for (int i = 0; i < 2; i++) {
		open_ask(&w, &asks[0], 0, 1u << i, 0, false);
		ok(frames_reserve_lease(w.frames), "lease %d of 8 frames", i);
		frames_lease(w.frames, (uint32_t)i);
		w.leases[i]++;
		close_ask(&asks[0]);
	}
	ok(!frames_reserve_lease(w.frames), "a third would leave too few for a layer");
	open_ask(&w, &asks[0], 3, 0x3f, 0, false);
	end_reads(&w);
	ok(asks[0].status == 0 && w.at[0] == 0 && w.at[1] == 1 && !w.wrong, "all of a layer go beside the leases");
	close_ask(&asks[0]);
	w.leases[0]--;
	frames_unlease(w.frames, 0);
	ok(frames_reserve_lease(w.frames), "one is given back: another may be taken");
	frames_unreserve_lease(w.frames);
	open_ask(&w, &asks[0], 4, 0x3f, 0, true);
	open_ask(&w, &asks[1], 2, 0x01, 0, false);
	end_reads(&w);
	ok(w.at[0] == FRAMES_NONE && w.at[1] == 1, "what is not leased any more goes, what is leased stays");
	close_ask(&asks[0]);
	close_ask(&asks[1]);
	frames_unlease(w.frames, 1);
	frames_free(w.frames);
}

static void test_failure(void)
{
	struct world w;

	begin(&w, 8, 0);
	open_ask(&w, &asks[0], 0, 0x07, 0, false);
	open_ask(&w, &asks[1], 0, 0x06, 0, false);
	open_ask(&w, &asks[2], 0, 0x04, 0, false);
	end_read(&w, w.at[0], -EIO);
	ok(asks[0].status == -EIO && asks[1].status == 1 && asks[2].status == 1,
	   "a failed read fails who needs it, nobody else");
	end_reads(&w);
	ok(asks[1].status == 0 && asks[2].status == 0, "the others go on");
	ok(w.counters.failures == 1 && w.at[0] == FRAMES_NONE, "the record has no frame");
	close_ask(&asks[0]);
	open_ask(&w, &asks[0], 0, 0x01, 0, false);
	end_reads(&w);
	ok(asks[0].status == 0, "and can be asked for again");
	for (int i = 0; i < 3; i++)
		close_ask(&asks[i]);
	open_ask(&w, &asks[0], 1, 0x01, 0, false);
	close_ask(&asks[0]);
	ok(w.reading[w.at[EXPERTS]], "cancelled, its read goes on");
	open_ask(&w, &asks[1], 2, 0x3f, 0, false);
	ok(w.at[EXPERTS] != FRAMES_NONE && !w.wrong, "into its own frame, whoever needs one (%s)",
	   w.wrong ? w.wrong : "no law broken");
	end_reads(&w);
	close_ask(&asks[1]);
	frames_free(w.frames);
}

static void test_hints(void)
{
	const uint64_t two = 0x03, none = 0;
	struct world w;

	begin(&w, 8, 6);
	frames_hint(w.frames, w.mine[0], 1, &two);
	ok(frames_pump(w.frames) && w.n_reads == 2 && !w.urgent[w.at[EXPERTS]],
	   "a hint is read ahead, without urgency");
	end_reads(&w);
	open_ask(&w, &asks[0], 1, 0x01, 0, false);
	ok(asks[0].status == 0 && w.counters.prefetch_used == 1, "who asks for it finds it there");
	close_ask(&asks[0]);
	open_ask(&w, &asks[0], 3, 0x0f, 0, false);
	frames_hint(w.frames, w.mine[0], 2, &two);
	ok(!frames_pump(w.frames), "while an ask waits for its reads no hint is followed");
	frames_hint(w.frames, w.mine[0], 2, &none);
	end_reads(&w);
	ok(!frames_pump(w.frames), "a later hint for the layer takes it back");
	frames_hint(w.frames, w.mine[0], 2, &two);
	frames_hint(w.frames, w.mine[0], 2, NULL);
	ok(!frames_pump(w.frames), "so does its computation");
	close_ask(&asks[0]);
	open_ask(&w, &asks[0], 3, 0x3f, 0, false);
	end_reads(&w);
	w.n_gone = 0;
	frames_hint(w.frames, w.mine[0], 4, &two);
	frames_pump(w.frames);
	for (uint64_t i = 0; i < w.n_gone; i++)
		if (w.gone[i] / EXPERTS == 3 || w.gone[i] == EXPERTS)
			blame(&w, "a hint has evicted what was used in this pass");
	ok(!w.wrong, "a hint evicts nothing that was used in this pass (%s)", w.wrong ? w.wrong : "no law broken");
	end_reads(&w);
	close_ask(&asks[0]);
	frames_free(w.frames);
}

static void test_hints_of_two(void)
{
	const uint64_t first = 0x01, second = 0x02;
	struct world w;

	begin(&w, 10, 0);
	frames_hint(w.frames, w.mine[0], 1, &first);
	frames_hint(w.frames, w.mine[1], 1, &second);
	ok(frames_pump(w.frames) && w.reading[w.at[EXPERTS]] && w.reading[w.at[EXPERTS + 1]],
	   "what two have hinted of a layer is read, for both");
	end_reads(&w);
	frames_hint(w.frames, w.mine[0], 2, &first);
	frames_hint(w.frames, w.mine[1], 2, &first);
	frames_hint(w.frames, w.mine[1], 2, NULL);
	ok(frames_pump(w.frames) && w.at[2 * EXPERTS] != FRAMES_NONE, "what one of them takes back stays the other's");
	end_reads(&w);
	frames_hint(w.frames, w.mine[0], 3, &first);
	frames_hint(w.frames, w.mine[1], 3, &first);
	frames_hint(w.frames, w.mine[0], 3, NULL);
	frames_hint(w.frames, w.mine[1], 3, NULL);
	ok(!frames_pump(w.frames) && w.at[3 * EXPERTS] == FRAMES_NONE, "what both have taken back is nobody's");
	frames_free(w.frames);
}

static void test_hurry(void)
{
	const uint64_t two = 0x03;
	struct world w;

	begin(&w, 8, 0);
	frames_hint(w.frames, w.mine[0], 1, &two);
	frames_pump(w.frames);
	ok(!w.urgent[w.at[EXPERTS]] && !w.urgent[w.at[EXPERTS + 1]], "what is read for a hint is not urgent");
	open_ask(&w, &asks[0], 1, 0x01, 0, false);
	ok(w.urgent[w.at[EXPERTS]] && !w.urgent[w.at[EXPERTS + 1]], "until somebody asks for it");
	frames_hint(w.frames, w.mine[0], 2, &two);
	end_reads(&w);
	ok(!w.wrong && asks[0].status == 0, "who has it when it is read (%s)", w.wrong ? w.wrong : "no law broken");
	close_ask(&asks[0]);
	frames_pump(w.frames);
	ok(w.at[2 * EXPERTS] != FRAMES_NONE && w.at[2 * EXPERTS + 1] != FRAMES_NONE,
	   "and as many are read for hints as before");
	end_reads(&w);
	frames_free(w.frames);
}

/* What a successor finds. */
static void test_table(void)
{
	struct world w;
	struct frames *again;
	struct frames_params params = {.rows = ROWS,
				       .experts = EXPERTS,
				       .frames = 8,
				       .policy = &policy_lru,
				       .counters = &w.counters,
				       .read = on_read,
				       .userdata = &w};
	uint32_t there = 0;

	begin(&w, 8, 8);
	open_ask(&w, &asks[0], 3, 0x07, 0, false);
	end_read(&w, w.at[3 * EXPERTS], 0);
	for (uint32_t i = 0; i < 8; i++)
		there += w.table[i] != 0;
	ok(there == 6, "three frames were given away, one has been read into: the table has six records");
	params.table = w.table;
	require(frames_new(&again, &params) == 0, "a successor takes the table over");
	ok(frames_of(again, 3 * EXPERTS) == w.at[3 * EXPERTS] && frames_of(again, 3 * EXPERTS + 1) == FRAMES_NONE,
	   "what was being read is not there, what had been read is");
	ok(frames_lease_again(again, 3 * EXPERTS) && !frames_lease_again(again, 3 * EXPERTS + 1) &&
		   !frames_lease_again(again, RECORDS),
	   "a lease is taken again of what is there");
	frames_unlease(again, 3 * EXPERTS);
	frames_free(again);
	w.table[0] = w.table[1] = 1;
	ok(frames_new(&again, &params) == -EINVAL, "a record in two frames is no table");
	w.table[1] = RECORDS + 1;
	ok(frames_new(&again, &params) == -EINVAL, "nor is one with a record too many");
	w.table[0] = w.table[1] = 0;
	w.table[w.at[3 * EXPERTS + 1]] = w.table[w.at[3 * EXPERTS + 2]] = 0;
	end_reads(&w);
	close_ask(&asks[0]);
	frames_free(w.frames);
}

/* -- at random ---------------------------------------------------------------------------------------------------- */

static void random_ask(struct world *w, struct test_ask *t)
{
	static uint32_t last;
	const uint32_t row = random_below(3) ? (last + 1) % ROWS : random_below(ROWS);
	uint64_t experts = random_below(1u << EXPERTS);

	if (!experts)
		experts = (1u << EXPERTS) - 1;
	open_ask(w, t, row, experts, random_below(FRAMES_CLASSES), row < last);
	last = row;
}

static void random_lease(struct world *w)
{
	for (uint32_t i = 0; i < ASKS; i++) {
		const uint32_t record = asks[i].ready ? record_at(asks[i].ask, 0) : 0;

		if (!asks[i].ready || !frames_reserve_lease(w->frames))
			continue;
		frames_lease(w->frames, record);
		w->leases[record]++;
		return;
	}
}

static void random_unlease(struct world *w)
{
	const uint32_t first = random_below(RECORDS);

	for (uint32_t i = 0; i < RECORDS; i++) {
		const uint32_t record = (first + i) % RECORDS;

		if (!w->leases[record])
			continue;
		w->leases[record]--;
		frames_unlease(w->frames, record);
		return;
	}
}

static void random_step(struct world *w)
{
	struct test_ask *t = &asks[random_below(ASKS)];
	const uint64_t bits = random_below(1u << EXPERTS);
	const uint32_t frame = random_below(w->n_frames);

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
		frames_hint(w->frames, w->mine[random_below(2)], random_below(ROWS), random_below(4) ? &bits : NULL);
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
		const uint32_t n = (uint32_t)frames_min(EXPERTS, 2) + random_below(FRAMES_MAX - EXPERTS - 2);

		begin(&w, n, random_below((n < RECORDS ? n : RECORDS) + 1));
		for (int i = 0; i < 2000 && !w.wrong; i++) {
			random_step(&w);
			check_level(&w);
		}
		finish_world(&w);
		check_level(&w);
		for (uint32_t i = 0; i < RECORDS; i++)
			for (; w.leases[i]; w.leases[i]--)
				frames_unlease(w.frames, i);
		if (w.counters.reads != w.n_reads || w.counters.read_bytes != 100 * w.n_reads ||
		    w.counters.evictions + w.counters.failures != w.n_gone ||
		    w.counters.prefetch_used + w.counters.prefetch_wasted > w.counters.prefetches)
			blame(&w, "the counters do not balance");
		wrong = w.wrong;
		waits += w.counters.waits;
		evictions += w.counters.evictions;
		used += w.counters.prefetch_used;
		failures += w.counters.failures;
		frames_free(w.frames);
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
	test_all_or_nothing();
	test_order();
	test_leases();
	test_failure();
	test_hints();
	test_hints_of_two();
	test_hurry();
	test_table();
	test_random();
	return tap_done();
}
