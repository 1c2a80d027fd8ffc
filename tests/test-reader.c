/* SPDX-License-Identifier: MIT */
/* reader - records of the sample model, read one by one: each is what all of them were when they were learnt, and what
 * is hurried overtakes what is not; who is not alone has few slots, and waits for none in vain. */
#include "daemon/reader.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/manifest.h"
#include "model/expert.h"
#include "model/model.h"
#include "tests/fixture.h"
#include "tests/tap.h"

#define ATTEMPTS 20
#define ROUNDS 10
#define FEW 3u
#define OVERTAKEN 24 /* records that come after it: more than the threads have in hand */

static struct moe_manifest *manifest;
static struct reader *reader;
static uint32_t n_records;

static struct reader_job *new_job(uint32_t record)
{
	struct reader_job *job = calloc(1, sizeof *job);

	if (!job)
		exit(1);
	job->record = record;
	job->rank = 1;
	job->offset = record * manifest->record_bytes;
	job->zero = true;
	return job;
}

static void read_record(uint32_t record, uint8_t *learn)
{
	struct reader_job *job = new_job(record);

	job->learn = learn;
	reader_read(reader, job);
}

/* The next that is done; *status of the first that failed. */
static uint32_t next_record(int *status)
{
	struct reader_job *job = reader_next_done(reader, true);
	const uint32_t record = job->record;

	if (job->status && !*status)
		*status = job->status;
	free(job);
	return record;
}

static void test_learnt(void)
{
	int status = 0;

	for (uint32_t i = 0; i < n_records; i++)
		read_record(i, manifest_records(manifest)[i].digest);
	for (uint32_t i = 0; i < n_records; i++)
		next_record(&status);
	ok(status == 0, "%u records are learnt", n_records);
	for (uint32_t i = 0; i < n_records; i++)
		read_record(i, NULL);
	for (uint32_t i = 0; i < n_records; i++)
		next_record(&status);
	ok(status == 0, "and are the same when they are read again");
	manifest_records(manifest)[3].digest[0] ^= 1;
	read_record(3, NULL);
	next_record(&status);
	ok(status == -ESTALE, "one that is another than it was is refused");
	manifest_records(manifest)[3].digest[0] ^= 1;
}

/* Asks for all, hurries `record` if told to, and returns how many came after it. */
static uint32_t came_after(uint32_t record, bool hurried, int *status)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < n_records; i++)
		read_record(i, NULL);
	if (hurried)
		reader_hurry(reader, record * manifest->record_bytes, 0);
	for (uint32_t i = 0; i < n_records; i++)
		if (next_record(status) == record)
			at = i;
	return n_records - 1 - at;
}

/* The threads may be so fast, or this one so slow, that nothing is left to be overtaken: not each time. */
static void test_hurry(void)
{
	uint32_t most = 0, most_idle = 0;
	int status = 0;

	for (int i = 0; i < ATTEMPTS && most < OVERTAKEN; i++)
		most = MAX(most, came_after(n_records - 1, true, &status));
	for (int i = 0; i < 3; i++)
		most_idle = MAX(most_idle, came_after(n_records - 1, false, &status));
	ok(status == 0 && most >= OVERTAKEN, "the last one, hurried, overtakes others (%u)", most);
	ok(most_idle < OVERTAKEN, "which it does not by itself (%u)", most_idle);
	reader_hurry(reader, 0, 0);
	ok(reader_next_done(reader, false) == NULL, "who hurries what is not asked for reads nothing");
}

/* Of one user, and the most that there were of them when a record was done. */
struct share {
	uint32_t slots, most;
};

static void look(void *userdata)
{
	struct share *share = userdata;

	share->most = MAX(share->most, share->slots);
}

static void read_for(uint32_t *slots, uint32_t record, bool shared)
{
	struct reader_job *job = new_job(record);

	job->slots = slots;
	job->shared = shared;
	reader_read(reader, job);
}

static void read_shared(struct share *share, bool shared)
{
	int status = 0;

	share->most = 0;
	reader_set_wake(reader, look, share);
	for (uint32_t i = 0; i < n_records; i++)
		read_for(&share->slots, i, shared);
	for (uint32_t i = 0; i < n_records; i++)
		next_record(&status);
	reader_set_wake(reader, NULL, NULL);
	ok(status == 0 && share->slots == 0, "%u records are read for one user, who has no slot in the end", n_records);
}

static void test_shared(void)
{
	struct share share = {0};

	read_shared(&share, false);
	ok(share.most >= 2 * READER_SHARED, "who is alone has many slots (%u)", share.most);
	read_shared(&share, true);
	ok(share.most <= READER_SHARED, "who is not has %u at most (%u)", READER_SHARED, share.most);
}

/* How many of so many records come, within the time that a test waits. */
static uint32_t come(uint32_t n)
{
	uint32_t got = 0;

	for (uint64_t end = now_ns() + TAP_SOON_NS; got < n && now_ns() < end;) {
		struct reader_job *job = reader_next_done(reader, false);

		if (!job) {
			usleep(100);
			continue;
		}
		got++;
		free(job);
	}
	return got;
}

static _Atomic bool held; /* the helpers */

void __real_repack(const struct repack *repack, const struct record_share *to, uint64_t first, uint64_t n,
		   const void *bytes);
void __wrap_repack(const struct repack *repack, const struct record_share *to, uint64_t first, uint64_t n,
		   const void *bytes);

void __wrap_repack(const struct repack *repack, const struct record_share *to, uint64_t first, uint64_t n,
		   const void *bytes)
{
	while (atomic_load(&held))
		usleep(100);
	__real_repack(repack, to, first, n, bytes);
}

/* A user who was alone when it asked for some records is not when it asks for the next: that one waits for slots of the
 * others. The helpers bring these back, when the ring thread, which the disk has nothing more for, sleeps. */
static void test_no_longer_alone(uint32_t *slots, const char *whose)
{
	uint32_t round, got = FEW + 1;

	for (round = 0; round < ROUNDS && got == FEW + 1; round++) {
		atomic_store(&held, true);
		for (uint32_t i = 0; i <= FEW; i++)
			read_for(slots, i, i == FEW);
		usleep(20000);
		atomic_store(&held, false);
		got = come(FEW + 1);
	}
	ok(got == FEW + 1, "%s is no longer alone: %u of %u records come", whose, got, FEW + 1);
}

int main(void)
{
	struct reader_params params = {.path = fixture_sample()};
	struct model *model = NULL;
	struct moe_error err = {0};
	uint32_t slots = 0;
	uint8_t *memory;

	require(model_open(&model, params.path, &err) == 0, "the sample model: %s", err.text);
	require(manifest_new(&manifest, model, 1, &err) == 0, "its manifest: %s", err.text);
	n_records = manifest->n_moe_layers * manifest->n_experts;
	memory = aligned_alloc(4096, ALIGN_UP(n_records * manifest->record_bytes, (uint64_t)4096));
	require(memory != NULL && n_records > 2 * OVERTAKEN, "memory for %u records", n_records);
	params.manifest = manifest;
	params.model = model;
	params.memory[0] = memory;
	require(reader_new(&reader, &params, &err) == 0, "a reader: %s", err.text);
	test_learnt();
	test_hurry();
	test_shared();
	test_no_longer_alone(&slots, "who asks for records");
	test_no_longer_alone(NULL, "who hints");
	reader_free(reader);
	free(memory);
	free(manifest);
	return tap_done();
}
