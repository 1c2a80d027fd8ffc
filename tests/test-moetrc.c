/* SPDX-License-Identifier: MIT */
/* Recorded routing as a file has it: read both ways, cut short, damaged. */
#include <errno.h>
#include <string.h>

#include "simulate/moetrc.h"
#include "tests/tap.h"

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

static void test_moetrc(void)
{
	static const uint8_t good[] = {'M', 'O', 'E', 'T', 'R', 'C', '1', 0,   1, 0,   0, 0, 4, 0, 0, 0,
				       2,   0,   0,   0,   2,   0,   0,   0,         /* sequences */
				       1,   0,   0,   0,   3,   1,   255, 255, 0, 0, /* 3 1 */
				       2,   0,   0,   0,   0,   2,   2,   1,   0, 128, 0, 0, 0, 1, 0, 0}; /* 0 2, 2 1 */
	struct moe_error err = {0};
	uint8_t bad[sizeof good];
	struct sim_trace t;
	bool refused = true;

	require(moetrc_parse(&t, good, sizeof good, false, &err) == 0, "a small trace is read%s", err.text);
	ok(t.steps == 3 && t.tokens[0] == 1 && t.ids[0] == 3 && t.ids[2] == 0 && t.ids[5] == 1 && t.weights[0] == 1.0f,
	   "one sequence after the other");
	ok(t.sequences == 2 && t.begins[0] == 0 && t.begins[1] == 1, "and where each begins");
	sim_trace_fini(&t);
	require(moetrc_parse(&t, good, sizeof good, true, &err) == 0, "together it is read as well%s", err.text);
	ok(t.steps == 2 && t.tokens[0] == 2 && t.tokens[1] == 1 && t.ids[2] == 0 && t.ids[4] == 2,
	   "together: a step is a token of each that is as long");
	ok(t.sequences == 0, "and there are no sequences one after the other");
	sim_trace_fini(&t);
	/* The second sequence, and then the first, without a step. */
	memcpy(bad, good, sizeof good);
	bad[34] = 0;
	require(moetrc_parse(&t, bad, 38, false, &err) == 0, "a sequence of no steps is one%s", err.text);
	ok(t.steps == 1 && t.tokens[0] == 1 && t.ids[1] == 1, "it adds none");
	sim_trace_fini(&t);
	memmove(bad + 28, good + 34, sizeof good - 34);
	memset(bad + 24, 0, 4);
	for (int together = 0; together < 2; together++) {
		require(moetrc_parse(&t, bad, sizeof good - 6, together, &err) == 0, "nor the first of two%s",
			err.text);
		ok(t.steps == 2 && t.tokens[0] == 1 && t.ids[0] == 0 && t.ids[3] == 1, "what follows it is read");
		sim_trace_fini(&t);
	}
	for (int sequences = 0; sequences < 2; sequences++) {
		bad[20] = (uint8_t)sequences;
		require(moetrc_parse(&t, bad, sequences ? 28 : 24, false, &err) == 0, "no steps at all%s", err.text);
		ok(t.steps == 0 && t.layers == 1 && t.experts == 4 && t.topk == 2, "are a trace as well");
		sim_trace_fini(&t);
	}
	for (size_t n = 0; n < sizeof good; n++)
		refused &= moetrc_parse(&t, good, n, false, &err) == -EINVAL;
	ok(refused && err.text[0], "cut short it is refused: %s", err.text);
	memcpy(bad, good, sizeof good);
	bad[28] = 4;
	ok(moetrc_parse(&t, bad, sizeof bad, false, &err) == -EINVAL && strstr(err.text, "byte 28"),
	   "an expert that is none is refused: %s", err.text);
	for (uint32_t i = 0; i < 20000; i++) {
		memcpy(bad, good, sizeof good);
		bad[8 + below(sizeof bad - 8)] = (uint8_t)below(256);
		if (moetrc_parse(&t, bad, sizeof bad, below(2), &err) == 0)
			sim_trace_fini(&t);
	}
	ok(true, "20000 damaged ones are read or refused");
}

int main(void)
{
	seed = tap_seed();
	test_moetrc();
	return tap_done();
}
