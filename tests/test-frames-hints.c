/* SPDX-License-Identifier: MIT */
/* frames - what is read ahead into frames of a tiered model: hints, one by one. */
#include "tests/frames-world.h"

static void open_ask(struct world *w, struct test_ask *t, uint32_t row, uint64_t experts, uint32_t class, bool wraps)
{
	open_ask_of(w, t, 0, row, experts, class, wraps);
}

static void test_hints(void)
{
	const uint64_t two = 0x03, none = 0;
	struct world w;

	begin(&w, 8, 6);
	frames_hint(w.frames, w.mine[0], 1, &two, NULL);
	ok(frames_pump(w.frames) && w.n_reads == 2 && w.rank[w.at[EXPERTS]] == FRAMES_RANK_HINT,
	   "a hint is read ahead, without urgency");
	end_reads(&w);
	open_ask(&w, &asks[0], 1, 0x01, 0, false);
	ok(asks[0].status == 0 && w.counters.prefetch_used == 1, "who asks for it finds it there");
	close_ask(&asks[0]);
	open_ask(&w, &asks[0], 3, 0x0f, 0, false);
	frames_hint(w.frames, w.mine[0], 2, &two, NULL);
	ok(!frames_pump(w.frames), "while an ask waits for its reads no hint is followed");
	frames_hint(w.frames, w.mine[0], 2, &none, NULL);
	end_reads(&w);
	ok(!frames_pump(w.frames), "a later hint for the layer takes it back");
	frames_hint(w.frames, w.mine[0], 2, &two, NULL);
	frames_hint(w.frames, w.mine[0], 2, NULL, NULL);
	ok(!frames_pump(w.frames), "so does its computation");
	close_ask(&asks[0]);
	open_ask(&w, &asks[0], 3, 0x3f, 0, false);
	end_reads(&w);
	w.n_gone = 0;
	frames_hint(w.frames, w.mine[0], 4, &two, NULL);
	frames_pump(w.frames);
	for (uint64_t i = 0; i < w.n_gone; i++)
		if (w.gone[i] / EXPERTS == 3 || w.gone[i] == EXPERTS)
			blame(&w, "a hint has evicted what was used in this pass");
	ok(!w.wrong, "a hint evicts nothing that was used in this pass (%s)", w.wrong ? w.wrong : "no law broken");
	end_reads(&w);
	close_ask(&asks[0]);
	end(&w);
}

/* What has a frame of a row, as bits. */
static uint32_t there(const struct world *w, uint32_t row)
{
	uint32_t bits = 0;

	for (uint32_t e = 0; e < EXPERTS; e++)
		bits |= (uint32_t)(w->at[row * EXPERTS + e] != FRAMES_NONE) << e;
	return bits;
}

static void test_chances(void)
{
	const uint16_t chances[EXPERTS] = {100, FRAMES_HINT_SURE / 2, FRAMES_HINT_WEAK, FRAMES_HINT_SURE / 4};
	const uint16_t surer[EXPERTS] = {FRAMES_HINT_SURE, 1};
	const uint64_t four = 0x0f, two = 0x03, one = 0x01;
	struct world w;

	begin(&w, 8, 0);
	frames_hint(w.frames, w.mine[0], 1, &four, chances);
	frames_pump(w.frames);
	ok(there(&w, 1) == 0x0a, "the two that are most probable are read first (%x)", there(&w, 1));
	end_reads(&w);
	frames_pump(w.frames);
	ok(there(&w, 1) == 0x0e, "then the next one, and nothing weak beside it (%x)", there(&w, 1));
	end_reads(&w);
	frames_pump(w.frames);
	ok(there(&w, 1) == 0x0f, "what is weak comes when nothing else is read (%x)", there(&w, 1));
	end(&w);

	begin(&w, 8, 0);
	frames_hint(w.frames, w.mine[0], 1, &one, chances);
	frames_hint(w.frames, w.mine[0], 3, &four, chances);
	frames_pump(w.frames);
	ok(there(&w, 1) == 0x01 && there(&w, 3) == 0x02,
	   "while nothing is read a weak one of the layer that is needed first comes first (%x, %x)", there(&w, 1),
	   there(&w, 3));
	end(&w);

	begin(&w, 8, 0);
	frames_hint(w.frames, w.mine[0], 1, &four, chances);
	frames_hint(w.frames, w.mine[1], 1, &two, surer);
	frames_pump(w.frames);
	ok(there(&w, 1) == 0x03, "of two who hint the one that is surer counts (%x)", there(&w, 1));
	frames_hint(w.frames, w.mine[0], 1, NULL, NULL);
	frames_hint(w.frames, w.mine[1], 1, NULL, NULL);
	end_reads(&w);
	frames_pump(w.frames);
	ok(there(&w, 1) == 0x03, "and nothing is left when both have taken theirs back");
	end(&w);
}

static void test_hints_of_two(void)
{
	const uint64_t first = 0x01, second = 0x02;
	struct world w;

	begin(&w, 10, 0);
	frames_hint(w.frames, w.mine[0], 1, &first, NULL);
	frames_hint(w.frames, w.mine[1], 1, &second, NULL);
	ok(frames_pump(w.frames) && w.reading[w.at[EXPERTS]] && w.reading[w.at[EXPERTS + 1]],
	   "what two have hinted of a layer is read, for both");
	end_reads(&w);
	frames_hint(w.frames, w.mine[0], 2, &first, NULL);
	frames_hint(w.frames, w.mine[1], 2, &first, NULL);
	frames_hint(w.frames, w.mine[1], 2, NULL, NULL);
	ok(frames_pump(w.frames) && w.at[2 * EXPERTS] != FRAMES_NONE, "what one of them takes back stays the other's");
	end_reads(&w);
	frames_hint(w.frames, w.mine[0], 3, &first, NULL);
	frames_hint(w.frames, w.mine[1], 3, &first, NULL);
	frames_hint(w.frames, w.mine[0], 3, NULL, NULL);
	frames_hint(w.frames, w.mine[1], 3, NULL, NULL);
	ok(!frames_pump(w.frames) && w.at[3 * EXPERTS] == FRAMES_NONE, "what both have taken back is nobody's");
	end(&w);
}

static void test_hurry(void)
{
	const uint64_t two = 0x03;
	struct world w;

	begin(&w, 8, 0);
	frames_hint(w.frames, w.mine[0], 1, &two, NULL);
	frames_pump(w.frames);
	ok(w.rank[w.at[EXPERTS]] == FRAMES_RANK_HINT && w.rank[w.at[EXPERTS + 1]] == FRAMES_RANK_HINT,
	   "what is read for a hint is not urgent");
	open_ask(&w, &asks[0], 1, 0x01, 0, false);
	ok(w.rank[w.at[EXPERTS]] < FRAMES_RANK_HINT && w.rank[w.at[EXPERTS + 1]] == FRAMES_RANK_HINT,
	   "until somebody asks for it");
	frames_hint(w.frames, w.mine[0], 2, &two, NULL);
	end_reads(&w);
	ok(!w.wrong && asks[0].status == 0, "who has it when it is read (%s)", w.wrong ? w.wrong : "no law broken");
	close_ask(&asks[0]);
	frames_pump(w.frames);
	ok(w.at[2 * EXPERTS] != FRAMES_NONE && w.at[2 * EXPERTS + 1] != FRAMES_NONE,
	   "and as many are read for hints as before");
	end_reads(&w);
	end(&w);
}

int main(void)
{
	test_hints();
	test_chances();
	test_hints_of_two();
	test_hurry();
	return tap_done();
}
