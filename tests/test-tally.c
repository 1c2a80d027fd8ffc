/* SPDX-License-Identifier: MIT */
/*
 * A model's tally is what was written into it when it is opened again, by whoever holds its file; one of another
 * version, of another model, that was cut, or with anything in it that no daemon writes is refused.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memfd.h"
#include "base/util.h"
#include "daemon/tally.h"
#include "tests/tap.h"

#define LAYERS 5

static void fill(struct tally *t)
{
	struct moe_ghost_stats g = {.layers = 2, .steps = 7, .asked = 30, .asked_pairs = 90, .bound_slots = 4};

	memcpy(g.caches[0].policy, "ema", 3);
	g.caches[0].slots = 4;
	g.caches[0].hits = 11;
	model_ghosts_add(&t->ghosts, &g);
	for (uint32_t l = 0; l < LAYERS; l++)
		for (int i = 0; i < TIMES_PARTS; i++)
			histogram_add_alone(&t->layers[l].part[i], 1000 * l + (uint64_t)i);
}

static void test_again(void)
{
	struct tally *t, *again;
	struct moe_error err;
	int fd;

	require(tally_new(&t, &fd, LAYERS, &err) == 0, "a tally");
	fill(t);
	require(tally_open(&again, fd, LAYERS, &err) == 0, "it is opened again");
	ok(again != t && memcmp(again, t, t->bytes) == 0, "what was written is there");
	ok(policy_at(again->ghosts.caches[0].policy) == policy_find("ema"), "the policy is the same one");
	ok(histogram_count(&again->layers[LAYERS - 1].part[TIMES_COPY]) == 1, "the last layer has its histograms");
	tally_close(again);
	tally_close(t);
	close(fd);
}

/* One word of a good one is other: `expected` is what opening it says. */
static void refuses(size_t at, uint32_t word, int expected, const char *what)
{
	struct tally *t, *again;
	struct moe_error err;
	int fd, r;

	require(tally_new(&t, &fd, LAYERS, &err) == 0, "a tally");
	fill(t);
	memcpy((char *)t + at, &word, sizeof word);
	r = tally_open(&again, fd, LAYERS, &err);
	ok(r == expected, "%s is refused: %s", what, r < 0 ? err.text : "it is not");
	munmap(t, sizeof *t + LAYERS * sizeof *t->layers);
	close(fd);
}

static void test_refused(void)
{
	struct tally *t, *again;
	struct moe_error err;
	int fd, small;

	refuses(offsetof(struct tally, magic), 1, -EBADMSG, "another file");
	refuses(offsetof(struct tally, version), TALLY_VERSION + 1, -EPROTO, "another version");
	refuses(offsetof(struct tally, n_layers), LAYERS + 1, -EBADMSG, "one of more layers");
	refuses(offsetof(struct tally, bytes), 1u << 30, -EBADMSG, "one of another length");
	refuses(offsetof(struct tally, ghosts.n_caches), MODEL_GHOSTS_CACHES + 1, -EBADMSG, "too many ghosts");
	refuses(offsetof(struct tally, ghosts.n_bounds), MODEL_GHOSTS_BOUNDS + 1, -EBADMSG, "too many bounds");
	refuses(offsetof(struct tally, ghosts.caches[0].policy), 1000, -EBADMSG, "a policy that there is not");

	require(tally_new(&t, &fd, LAYERS, &err) == 0, "a tally");
	ok(tally_open(&again, fd, LAYERS - 1, &err) == -EBADMSG, "another model's is refused: %s", err.text);
	small = memfd_new("small", MOE_RING_PAGE, &err);
	require(small >= 0 && pwrite(small, t, sizeof *t, 0) == sizeof *t, "a file that is too short");
	ok(tally_open(&again, small, LAYERS, &err) == -EINVAL, "and refused: %s", err.text);
	tally_close(t);
	close(fd);
	close(small);
	ok(tally_open(&again, -1, LAYERS, &err) == -EBADMSG, "no file is refused");
}

int main(void)
{
	test_again();
	test_refused();
	return tap_done();
}
