/* SPDX-License-Identifier: MIT */
/* frames - who gets which frame of a tiered model: the rules one by one. */
#include "tests/frames-world.h"

static void open_ask(struct world *w, struct test_ask *t, uint32_t row, uint64_t experts, uint32_t class, bool wraps)
{
	open_ask_of(w, t, 0, row, experts, class, wraps);
}

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
	end(&w);
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
	end(&w);
}

static void test_leases(void)
{
	struct world w;

	begin(&w, 10, 10);
	for (int i = 0; i < 2; i++) {
		open_ask(&w, &asks[0], 0, 1u << i, 0, false);
		ok(frames_reserve_lease(w.frames, user_of(&w, 0)), "lease %d of 10 frames", i);
		frames_lease(w.frames, user_of(&w, 0), (uint32_t)i);
		w.leases[i]++;
		close_ask(&asks[0]);
	}
	ok(!frames_reserve_lease(w.frames, user_of(&w, 0)), "a third would be more than half of the places");
	ok(frames_reserve_lease(w.frames, user_of(&w, 1)) && !frames_reserve_lease(w.frames, user_of(&w, 1)),
	   "another user finds one, and no second one");
	ok(frames_reserve_lease(w.frames, user_of(&w, 2)) && !frames_reserve_lease(w.frames, user_of(&w, 0)),
	   "a third user the last one: more would leave too few for a layer");
	frames_unreserve_lease(w.frames, user_of(&w, 1));
	frames_unreserve_lease(w.frames, user_of(&w, 2));
	open_ask(&w, &asks[0], 3, 0x3f, 0, false);
	end_reads(&w);
	ok(asks[0].status == 0 && w.at[0] == 0 && w.at[1] == 1 && !w.wrong, "all of a layer go beside the leases");
	close_ask(&asks[0]);
	w.leases[0]--;
	frames_unlease(w.frames, user_of(&w, 0), 0);
	ok(frames_reserve_lease(w.frames, user_of(&w, 0)), "one is given back: another may be taken");
	frames_unreserve_lease(w.frames, user_of(&w, 0));
	others_leave(&w);
	open_ask(&w, &asks[0], 4, 0x3f, 0, true);
	open_ask(&w, &asks[1], 2, 0x07, 0, false);
	end_reads(&w);
	ok(w.at[0] == FRAMES_NONE && w.at[1] == 1, "what is not leased any more goes, what is leased stays");
	close_ask(&asks[0]);
	close_ask(&asks[1]);
	frames_unlease(w.frames, user_of(&w, 0), 1);
	end(&w);
}

/* Reads say whether others have wanted the disk lately, and whose they are. */
static void test_shared(void)
{
	const struct timespec part = {.tv_sec = 0, .tv_nsec = FRAMES_SHARED_NS / 10};
	uint64_t bits = 0x20;
	struct world w;
	const uint32_t *first;

	begin(&w, 24, 0);
	open_ask_of(&w, &asks[0], 0, 0, 0x01, 0, false);
	first = w.slots;
	ok(!w.shared && first, "a read of who is alone");
	open_ask_of(&w, &asks[1], 0, 0, 0x02, 0, false);
	ok(!w.shared && w.slots == first, "and its next one");
	open_ask_of(&w, &asks[2], 1, 0, 0x04, 0, false);
	ok(w.shared && w.slots && w.slots != first, "another user's, who is not alone");
	open_ask_of(&w, &asks[3], 0, 0, 0x08, 0, false);
	ok(w.shared && w.slots == first, "nor is the first one any more");
	end_reads(&w);
	frames_hint(w.frames, w.mine[0], 0, &bits, NULL);
	frames_pump(w.frames);
	ok(w.shared && !w.slots, "nor is a hint, which is nobody's");
	end_reads(&w);
	for (int i = 0; i < 11; i++)
		nanosleep(&part, NULL);
	open_ask_of(&w, &asks[4], 0, 0, 0x10, 0, false);
	ok(!w.shared && w.slots == first, "after a while it is alone again");
	end_reads(&w);
	for (int i = 0; i < 5; i++)
		close_ask(&asks[i]);
	ok(!w.wrong, "no law broken (%s)", w.wrong ? w.wrong : "");
	end(&w);
}

/* What one user asks for is not in another one's way: neither its reads, nor what of it waits. */
static void test_turns(void)
{
	struct world w;
	uint64_t layer, single;

	begin(&w, 24, 0);
	open_ask_of(&w, &asks[0], 0, 0, 0x3f, 0, false);
	open_ask_of(&w, &asks[1], 0, 1, 0x01, 0, false);
	open_ask_of(&w, &asks[2], 1, 2, 0x01, 0, false);
	layer = w.rank[w.at[1]];
	single = w.rank[w.at[2 * EXPERTS]];
	ok(single < layer && layer < w.rank[w.at[EXPERTS]],
	   "another user's record is read before a layer's second one, and that before the user's next ask");
	open_ask_of(&w, &asks[3], 2, 2, 0x01, 0, false);
	ok(w.rank[w.at[2 * EXPERTS]] == single, "who asks for the same later changes nothing");
	open_ask_of(&w, &asks[4], 0, 3, 0x3f, 0, false);
	open_ask_of(&w, &asks[5], 0, 4, 0x01, 0, false);
	open_ask_of(&w, &asks[6], 1, 4, 0x02, 0, false);
	end_reads(&w);
	for (int i = 0; i < 4; i++)
		close_ask(&asks[i]);
	frames_pump(w.frames);
	ok(asks[4].ask->state == ASK_READS && w.at[4 * EXPERTS + 1] != FRAMES_NONE &&
		   w.at[4 * EXPERTS] != FRAMES_NONE && w.rank[w.at[4 * EXPERTS + 1]] < w.rank[w.at[4 * EXPERTS]],
	   "who has waited longest goes on first, then the other user, then the first one again");
	end_reads(&w);
	for (int i = 4; i < 7; i++)
		close_ask(&asks[i]);
	ok(!w.wrong, "no law broken (%s)", w.wrong ? w.wrong : "");
	end(&w);
}

static void test_found(void)
{
	struct world w;
	uint32_t passed = 0;

	begin(&w, 8, 8);
	open_ask_of(&w, &asks[0], 0, 0, 0x3f, 0, false); /* holds six of eight */
	open_ask_of(&w, &asks[1], 0, 3, 0x3f, 0, false);
	ok(asks[1].status == 1 && w.n_reads == 0, "an ask waits for frames");
	open_ask_of(&w, &asks[2], 1, 2, 0x01, 0, false);
	ok(asks[2].status == 1 && w.n_reads == 0, "what needs frames waits behind it");
	for (int i = 0; i < 2 * FRAMES_PASSES_MAX; i++) {
		open_ask_of(&w, &asks[3], 1, 1, 0x03, 0, false);
		passed += asks[3].status == 0;
		close_ask(&asks[3]);
	}
	ok(passed == FRAMES_PASSES_MAX, "what is there does not, but not for ever: %u times", passed);
	close_ask(&asks[0]);
	frames_pump(w.frames);
	end_reads(&w);
	ok(asks[1].status == 0 && asks[2].status == 0, "then it is their turn");
	for (int i = 1; i < 3; i++)
		close_ask(&asks[i]);
	end(&w);
}

/* Free frames or not: a user's reads have a limit, and that is not in another one's way. */
static void test_sated(void)
{
	const uint32_t n = FRAMES_READS_MAX / 2; /* each is a read, and an ask that waits for it */
	struct world w;

	begin(&w, FRAMES_MAX, 0);
	for (uint32_t i = 0; i < n + 1; i++)
		open_ask_of(&w, &asks[i], 0, i / EXPERTS, 1u << i % EXPERTS, 1, false);
	ok(w.n_reads == n, "%u records are being read for a user, one more waits", n);
	open_ask_of(&w, &asks[n + 1], 1, 4, 0x01, 1, false);
	ok(w.n_reads == n + 1, "another user's does not");
	close_ask(&asks[n + 1]);
	others_leave(&w); /* and with them what test_full is about */
	open_ask_of(&w, &asks[n + 2], 0, 4, 0x02, 0, false);
	ok(w.n_reads == n + 2 && w.rank[w.at[4 * EXPERTS + 1]] < w.rank[w.at[0]],
	   "nor what is more urgent, which is read first");
	open_ask_of(&w, &asks[n + 3], 0, 4, 0x02, 1, false);
	ok(asks[n + 3].ask->state == ASK_WAITS, "nor may it wait for any more reads");
	end_read(&w, w.at[0], 0);
	frames_pump(w.frames);
	ok(w.n_reads == n + 2, "one has been read, in the place of the urgent one");
	end_read(&w, w.at[1], 0);
	frames_pump(w.frames);
	ok(w.n_reads == n + 3 && asks[n + 3].ask->state == ASK_WAITS, "another one, and its next one is asked for");
	for (uint32_t i = 0; i < n + 4; i++)
		if (asks[i].open)
			close_ask(&asks[i]);
	end_reads(&w);
	end(&w);
}

/* A large ask of a full user gets its frames though smaller ones come all the time; nobody's hints wait for it. */
static void test_full_lines(struct world *w)
{
	uint32_t rounds = 0, absent = 0;
	uint64_t bits;

	for (uint32_t i = 0; i < 4; i++)
		open_ask_of(w, &asks[i], 0, i / 2, 3u << 2 * (i % 2), 0, false);
	open_ask_of(w, &asks[4], 0, 2, 0x3f, 0, true);
	ok(asks[4].ask->state == ASK_WAITS, "a user's ask for more than is left of its share waits");
	while (absent < RECORDS && w->at[absent] != FRAMES_NONE)
		absent++;
	require(absent < RECORDS, "a record is not there");
	bits = 1u << absent % EXPERTS;
	frames_hint(w->frames, w->mine[0], absent / EXPERTS, &bits, NULL);
	frames_pump(w->frames);
	ok(w->at[absent] != FRAMES_NONE, "what is hinted is read meanwhile");
	end_reads(w);
	for (; asks[4].ask->state == ASK_WAITS && rounds < 100; rounds++) {
		struct test_ask *const oldest = &asks[rounds % 4], *const new = &asks[5 + rounds % 4];

		open_ask_of(w, new, 0, rounds / 2 % 2, 3u << 2 * (rounds % 2), 0, false);
		if (oldest->open)
			close_ask(oldest);
		frames_pump(w->frames);
	}
	ok(rounds <= 4, "and gets it, before what comes after it (%u)", rounds);
	end_reads(w);
	for (int i = 0; i < 9; i++)
		if (asks[i].open)
			close_ask(&asks[i]);
	frames_pump(w->frames);
	end_reads(w);
}

/* What waits for the pool with its frames held has a limit as well, though its records are all there. */
static void test_full(void)
{
	struct world w;

	begin(&w, 24, 24);
	user_of(&w, 1);
	for (uint32_t i = 0; i < 6; i++)
		open_ask_of(&w, &asks[i], 0, i / 2, 3u << 2 * (i % 2), 0, false);
	ok(asks[5].status == 0, "a user's asks have half of 24 frames");
	open_ask_of(&w, &asks[6], 0, 3, 0x03, 0, false);
	ok(asks[6].ask->state == ASK_WAITS, "one more waits, though all of it is there");
	open_ask_of(&w, &asks[7], 1, 4, 0x0f, 0, false);
	ok(asks[7].ask->state == ASK_READS, "another user's finds room at once");
	open_ask_of(&w, &asks[8], 1, 4, 0x30, 0, false);
	ok(asks[8].ask->state == ASK_WAITS, "and has a share of what is left");
	close_ask(&asks[5]);
	frames_pump(w.frames);
	ok(asks[6].status == 1, "when the first has given two back he may have fewer");
	end_reads(&w);
	close_ask(&asks[7]);
	frames_pump(w.frames);
	ok(asks[6].status == 1 && asks[8].ask->state == ASK_READS, "while another has some his share is a third");
	end_reads(&w);
	close_ask(&asks[8]);
	frames_pump(w.frames);
	ok(asks[6].status == 0, "then it is his turn");
	for (int i = 0; i < 9; i++)
		if (asks[i].open)
			close_ask(&asks[i]);
	test_full_lines(&w);
	for (uint32_t i = 0; i < 3; i++)
		open_ask_of(&w, &asks[i], 0, i, 0x03, 2, false);
	ok(asks[0].status == 0 && asks[1].status != 0, "a less urgent class has a part of it");
	others_leave(&w);
	frames_pump(w.frames);
	end_reads(&w);
	ok(asks[1].status == 0 && asks[2].status == 0, "a user who is alone has all");
	for (int i = 0; i < 3; i++)
		close_ask(&asks[i]);
	ok(!w.wrong, "no law broken (%s)", w.wrong ? w.wrong : "none");
	end(&w);
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
	end(&w);
}

/* What a successor finds. */
static void test_table(void)
{
	struct world w;
	struct frames *again;
	struct frames_user *user;
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
	user = frames_join(again, 1000);
	require(user != NULL, "a user of it");
	ok(frames_lease_again(again, user, 3 * EXPERTS) && !frames_lease_again(again, user, 3 * EXPERTS + 1) &&
		   !frames_lease_again(again, user, RECORDS),
	   "a lease is taken again of what is there");
	frames_unlease(again, user, 3 * EXPERTS);
	frames_leave(again, user);
	frames_free(again);
	w.table[0] = w.table[1] = 1;
	ok(frames_new(&again, &params) == -EINVAL, "a record in two frames is no table");
	w.table[1] = RECORDS + 1;
	ok(frames_new(&again, &params) == -EINVAL, "nor is one with a record too many");
	w.table[0] = w.table[1] = 0;
	w.table[w.at[3 * EXPERTS + 1]] = w.table[w.at[3 * EXPERTS + 2]] = 0;
	end_reads(&w);
	close_ask(&asks[0]);
	end(&w);
}

/* What is in frames stays, in its order; what is pinned stays pinned. */
static void test_set_policy(void)
{
	static const char *const names[] = {"lfu", "sieve", "arc", "s3-fifo", "ebco-soft", "lru"};
	struct world w;
	uint32_t there = 0;
	bool kept = true;

	world_policy = &policy_lru;
	begin(&w, 8, 0);
	open_ask(&w, &asks[0], 0, 0x0f, 0, false);
	end_reads(&w);
	close_ask(&asks[0]);
	open_ask(&w, &asks[0], 0, 0x02, 0, false); /* 1 is used again, and stays pinned */
	for (uint32_t i = 0; i < ARRAY_LEN(names); i++) {
		kept &= frames_set_policy(w.frames, policy_find(names[i])) == 0;
		kept &= frames_policy(w.frames) == policy_find(names[i]);
	}
	for (uint32_t i = 0; i < RECORDS; i++)
		there += frames_of(w.frames, i) != FRAMES_NONE;
	ok(kept && there == 4 && w.n_gone == 0, "another policy, six times: what is in frames stays");
	open_ask(&w, &asks[1], 1, 0x3f, 0, false);
	end_reads(&w);
	ok(w.n_gone == 2 && w.gone[0] == 0 && w.gone[1] == 2 && frames_of(w.frames, 1) != FRAMES_NONE,
	   "who makes room then is who was to before, and not what is pinned");
	close_ask(&asks[0]);
	close_ask(&asks[1]);
	end(&w);
}

static void no_read(void *userdata, const struct frames_read *read)
{
}

/* Tables that no machine has room for are refused before anything is promised. */
static void test_large_policy(void)
{
	static uint32_t table[4104];
	struct frames_counters counters = {0};
	struct frames_params p = {.rows = 60,
				  .experts = 4096,
				  .frames = ARRAY_LEN(table),
				  .policy = &policy_ebco_hard,
				  .table = table,
				  .counters = &counters,
				  .read = no_read};
	struct frames *frames = NULL;
	bool good;

	ok(frames_new(&frames, &p) == -E2BIG, "ebco for 60 layers of 4096 experts is refused");
	p.policy = &policy_lru;
	good = frames_new(&frames, &p) == 0 && frames_set_policy(frames, &policy_ebco_soft) == -E2BIG;
	ok(good && frames_policy(frames) == &policy_lru, "also later, and what was there stays");
	ok(frames_set_policy(frames, &policy_arc) == 0, "others are not");
	frames_free(frames);
	p.rows = 2;
	p.experts = FRAMES_BY_PAIRS_MAX + 1;
	p.policy = &policy_ebco_soft;
	ok(frames_new(&frames, &p) == -E2BIG, "nor for %u experts, where an event takes too long", p.experts);
	p.experts--;
	ok(frames_new(&frames, &p) == 0, "but for %u", p.experts);
	frames_free(frames);
	p.rows = 60;
	p.experts = 256;
	p.frames = 264;
	p.policy = &policy_ebco_soft;
	ok(frames_new(&frames, &p) == 0, "ebco for 60 layers of 256 experts is not");
	frames_free(frames);
}

/* Of one row: lfu keeps what was asked for often, lru what was asked for last. */
static void test_policy_rules(void)
{
	static const char *const names[] = {"lru", "lfu"};
	uint32_t gone[2][2];

	for (uint32_t i = 0; i < 2; i++) {
		struct world w;

		world_policy = policy_find(names[i]);
		begin(&w, 8, 0);
		for (uint32_t turn = 0; turn < 4; turn++) {
			open_ask(&w, &asks[0], 0, turn < 3 ? 0x01 : 0x3e, 0, true);
			end_reads(&w);
			close_ask(&asks[0]);
		}
		open_ask(&w, &asks[0], 1, 0x0f, 0, false);
		end_reads(&w);
		close_ask(&asks[0]);
		memcpy(gone[i], w.gone, sizeof gone[i]);
		ok(w.n_gone == 2 && !w.wrong, "%s: two make room", names[i]);
		end(&w);
	}
	world_policy = &policy_lru;
	ok(gone[0][0] == 0 && gone[1][0] == 1 && gone[1][1] == 2, "lru: the one asked for three times; lfu: others");
}

int main(void)
{
	test_all_or_nothing();
	test_order();
	test_leases();
	test_turns();
	test_shared();
	test_found();
	test_sated();
	test_full();
	test_failure();
	test_table();
	test_set_policy();
	test_large_policy();
	test_policy_rules();
	return tap_done();
}
