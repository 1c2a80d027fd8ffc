/* SPDX-License-Identifier: MIT */
/*
 * Heat on its way to a disk that does not answer: unloading waits for nothing, whether or not a save is in progress,
 * nor does loading the same again, which has what it had, nor does forgetting it; saves end in their order, and what
 * fails is said and tried once more.
 *
 * fsync() is the test's: it waits for a gate.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/heat-file.h"
#include "daemon/heats.h"
#include "daemon/registry.h"
#include "tests/tap.h"

#define ROWS 2
#define EXPERTS 5

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool shut;
static unsigned waiting, asked;
static int refuse; /* so many of them fail */

int fsync(int fd)
{
	int r = 0;

	(void)fd;
	pthread_mutex_lock(&lock);
	asked++;
	waiting++;
	pthread_cond_broadcast(&changed);
	while (shut)
		pthread_cond_wait(&changed, &lock);
	waiting--;
	if (refuse > 0) {
		refuse--;
		r = -1;
	}
	pthread_mutex_unlock(&lock);
	errno = EIO;
	return r;
}

static void gate(bool close)
{
	pthread_mutex_lock(&lock);
	shut = close;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* Until a save stands before the gate. */
static void stands(void)
{
	pthread_mutex_lock(&lock);
	while (!waiting)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

struct warm {
	struct moe_manifest manifest;
	struct resident resident;
	struct entry entry;
};

static void warm_init(struct warm *m, uint8_t digest, const char *name)
{
	*m = (struct warm){.manifest = {.n_moe_layers = ROWS, .n_experts = EXPERTS}};
	m->manifest.digest[0] = digest;
	strcpy(m->manifest.name, name);
	m->resident.manifest = &m->manifest;
	m->entry.model = &m->resident;
}

/* Steps that a table has seen; one of its cells says how many. */
static void heat(struct warm *m, uint32_t steps)
{
	heat_table_add(m->entry.lasting->page, 3, steps);
	m->entry.lasting->page->steps += steps;
}

static uint64_t steps_of(const struct warm *m)
{
	return m->entry.lasting ? m->entry.lasting->page->steps : 0;
}

/* So many steps that they are saved, and a disk that does not answer. */
static void save_stuck(struct heats *h, struct warm *m, uint64_t now)
{
	heat(m, HEATS_SAVE_STEPS);
	gate(true);
	heats_look(h, now);
	stands();
}

static void test_unload(struct heats *h)
{
	struct warm a;
	warm_init(&a, 1, "a");
	heats_join(h, NULL, &a.entry, NULL);
	require(a.entry.lasting, "a table");
	heat(&a, 7);
	gate(true);
	heats_part(h, NULL, &a.entry);
	ok(!a.entry.lasting && h->save && !h->first, "unloading waits for no disk");
	stands();
	heats_look(h, 1);
	ok(h->save, "nor does looking after it");
	heats_join(h, NULL, &a.entry, NULL);
	ok(steps_of(&a) == 7 && h->save && !h->parting, "nor loading it again, and it has what it had (%llu)",
	   (unsigned long long)steps_of(&a));
	gate(false);
	heats_end(h);
	asked = 0;
	heats_part(h, NULL, &a.entry);
	heats_end(h);
	ok(asked == 0, "nothing new: nothing is written");
}

static void test_side_by_side(struct heats *h)
{
	struct warm a, b;

	warm_init(&a, 1, "a");
	warm_init(&b, 2, "b");
	heats_join(h, NULL, &a.entry, NULL);
	heats_join(h, NULL, &b.entry, NULL);
	save_stuck(h, &a, HEATS_SAVE_NS + 1);
	ok(h->save, "what has grown is being saved");
	heat(&b, 5);
	heats_part(h, NULL, &b.entry);
	heat(&a, 1);
	heats_part(h, NULL, &a.entry);
	ok(!h->first && h->save && h->parting, "two more are unloaded meanwhile, one of them the same");
	gate(false);
	heats_end(h);
	ok(!h->save && !h->parting && waiting == 0, "all of them end");
	heats_join(h, NULL, &a.entry, NULL);
	heats_join(h, NULL, &b.entry, NULL);
	ok(steps_of(&a) == 7 + HEATS_SAVE_STEPS + 1 && steps_of(&b) == 5,
	   "the later save of one model is the one that stays");
	heats_part(h, NULL, &a.entry);
	heats_part(h, NULL, &b.entry);
}

static void test_failures(struct heats *h)
{
	struct warm a, c;

	warm_init(&a, 1, "a");
	warm_init(&c, 3, "c");
	heats_join(h, NULL, &a.entry, NULL);
	heats_join(h, NULL, &c.entry, NULL);
	save_stuck(h, &a, 3 * HEATS_SAVE_NS);
	heat(&c, 9);
	refuse = 1;
	heats_part(h, NULL, &c.entry);
	gate(false);
	heats_end(h);
	ok(h->complained && a.entry.lasting->page->saved_steps == 0,
	   "a save that failed before another is not forgotten");
	heats_look(h, 5 * HEATS_SAVE_NS);
	ok(h->save, "it is tried again");
	heats_end(h);
	ok(!h->complained, "and is good");
	heats_join(h, NULL, &c.entry, NULL);
	ok(steps_of(&c) == 9, "the one behind it was written all the same");

	save_stuck(h, &a, 7 * HEATS_SAVE_NS);
	refuse = 1;
	heats_part(h, NULL, &a.entry);
	gate(false);
	heats_end(h);
	heats_join(h, NULL, &a.entry, NULL);
	ok(steps_of(&a) == 7 + 3 * HEATS_SAVE_STEPS + 1, "unloaded while its own save fails: it is written again");
	heats_part(h, NULL, &a.entry);
	heats_part(h, NULL, &c.entry);
	heats_end(h);
}

static bool has_file(const struct heats *h)
{
	char path[128];

	snprintf(path, sizeof path, "%s/heat-04%030d", h->folder, 0);
	return access(path, F_OK) == 0;
}

static void test_forget(struct heats *h)
{
	struct warm a;

	warm_init(&a, 4, "a");
	heats_join(h, NULL, &a.entry, NULL);
	save_stuck(h, &a, 11 * HEATS_SAVE_NS);
	ok(heats_forget(h, &a.entry, NULL) == 0 && steps_of(&a) == 0 && h->save, "forgetting waits for no disk");
	ok(heats_forget(h, &a.entry, NULL) == 0 && h->save->before && !h->save->before->before, "nor twice");
	gate(false);
	heats_end(h);
	ok(!has_file(h), "what was being saved is removed");
	heat(&a, 3);
	heats_part(h, NULL, &a.entry);
	heats_end(h);
	heats_join(h, NULL, &a.entry, NULL);
	ok(has_file(h) && steps_of(&a) == 3, "what comes afterwards is kept");
	ok(heats_forget(h, &a.entry, NULL) == 0, "forgotten again");
	heats_part(h, NULL, &a.entry);
	heats_end(h);
	heats_join(h, NULL, &a.entry, NULL);
	ok(steps_of(&a) == 0 && a.entry.lasting->page->cells[3] == 0, "and unloaded at once");
	heats_part(h, NULL, &a.entry);
	heats_end(h);
}

/* What lies on disk is read beside the reactor: what was unloaded meanwhile counts, saved or not. */
static void test_read_beside(struct heats *h)
{
	struct heats_saved saved = {.page = NULL}, none = {.page = NULL};
	struct warm a;

	warm_init(&a, 5, "a");
	heats_join(h, NULL, &a.entry, NULL);
	heat(&a, 3);
	heats_part(h, NULL, &a.entry);
	heats_end(h);
	heats_hold(h);
	heats_read(&saved, h->folder, &a.manifest);
	ok(saved.code == 0 && saved.page->steps == 3, "what lies on disk is read");
	heats_join(h, NULL, &a.entry, &saved);
	ok(steps_of(&a) == 3 && a.entry.lasting->page->cells[3] == 3, "and joined");
	heat(&a, 4);
	heats_part(h, NULL, &a.entry);
	heats_end(h);
	ok(h->parting && !h->save, "what is saved stays in memory while somebody reads");
	heats_join(h, NULL, &a.entry, &saved);
	ok(steps_of(&a) == 7 && !h->parting, "and is newer than what was read");
	heats_part(h, NULL, &a.entry);
	ok(h->parting && !h->save, "so does what need not be saved");
	heats_release(h);
	ok(!h->parting, "but no longer");
	heats_read(&none, NULL, &a.manifest);
	heats_join(h, NULL, &a.entry, &none);
	ok(none.code == -ENOENT && steps_of(&a) == 0, "without a folder there is nothing to read");
	heats_forget(h, &a.entry, NULL);
	heats_part(h, NULL, &a.entry);
	heats_end(h);
	heats_saved_free(&saved);
	heats_saved_free(&none);
	ok(!saved.page && !h->first && !h->parting, "and nothing is left");
}

int main(void)
{
	char folder[TAP_TMP], command[96];
	struct heats h = {.every = 1 << 20};

	require(mkdtemp(tap_tmp(folder, "moe-heats.XXXXXX")), "a folder");
	h.folder = folder;
	alarm(TAP_PATIENCE_S);
	test_unload(&h);
	test_side_by_side(&h);
	test_failures(&h);
	test_forget(&h);
	test_read_beside(&h);
	snprintf(command, sizeof command, "rm -r %s", folder);
	ok(system(command) == 0, "the folder is there");
	return tap_done();
}
