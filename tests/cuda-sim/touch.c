/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "tests/cuda-sim/sim.h"

#define PRUNE_FROM 512

/* A copy from host memory: what it read must stay so until the host sees its end. */
struct loan {
	struct loan *next;
	const uint8_t *host;
	uint64_t pitch, width, rows, hash, epoch;
	uint32_t lane;
};

/* A copy to host memory whose end the host has not seen. */
struct deposit {
	struct deposit *next;
	uint8_t *host;
	uint64_t bytes, epoch;
	uint32_t lane;
	uint8_t data[];
};

static struct loan *loans;
static struct deposit *deposits, **deposits_end = &deposits; /* in the order in which they ran */

void sim_join(struct sim_clock *clock, const struct sim_clock *other)
{
	for (int i = 0; i < SIM_LANES; i++)
		if (other->at[i] > clock->at[i])
			clock->at[i] = other->at[i];
}

/* Where a call fails, the caller cannot order what it throws away: then only numbers tell. */
static bool fails_on_purpose(void)
{
	return sim.fail_at || sim.run_fail_at;
}

/* -- races -------------------------------------------------------------------------------------------------------- */

/* What every command that is still to run comes after: no access before that can race with one. */
static void find_floor(struct sim_clock *floor)
{
	const struct sim_stream *s;

	*floor = sim.host;
	for (s = sim.streams; s; s = s->next) {
		struct sim_clock begin;

		if (!s->first)
			continue;
		begin = s->clock;
		sim_join(&begin, &s->first->since);
		for (int i = 0; i < SIM_LANES; i++)
			if (begin.at[i] < floor->at[i])
				floor->at[i] = begin.at[i];
	}
}

static void prune(struct sim_region *region)
{
	struct sim_clock floor;
	uint32_t i, kept = 0;

	find_floor(&floor);
	for (i = 0; i < region->n_accesses; i++)
		if (floor.at[region->accesses[i].lane] < region->accesses[i].epoch)
			region->accesses[kept++] = region->accesses[i];
	region->n_accesses = kept;
}

static void note(struct sim_region *region, const struct sim_access *access)
{
	uint32_t i;

	for (i = 0; i < region->n_accesses; i++) {
		struct sim_access *a = &region->accesses[i];

		if (a->lane == access->lane && a->begin == access->begin && a->end == access->end &&
		    a->write == access->write) {
			*a = *access;
			return;
		}
	}
	if (region->n_accesses == region->accesses_room) {
		if (region->n_accesses >= PRUNE_FROM)
			prune(region);
		if (region->n_accesses > region->accesses_room / 2 || region->accesses_room == 0) {
			region->accesses_room = region->accesses_room ? 2 * region->accesses_room : 16;
			region->accesses = realloc(region->accesses, region->accesses_room * sizeof *region->accesses);
			if (!region->accesses)
				abort();
		}
	}
	region->accesses[region->n_accesses++] = *access;
}

void sim_touch(struct sim_region *region, uint64_t begin, uint64_t bytes, bool write, const struct sim_stream *stream,
	       const char *what)
{
	const struct sim_access access = {
		.begin = begin,
		.end = begin + bytes,
		.epoch = stream->clock.at[stream->lane],
		.lane = stream->lane,
		.write = write,
		.what = what,
	};
	uint32_t i;

	for (i = 0; i < region->n_accesses; i++) {
		const struct sim_access *a = &region->accesses[i];

		if (!fails_on_purpose() && a->begin < access.end && access.begin < a->end && (a->write || write) &&
		    stream->clock.at[a->lane] < a->epoch)
			sim_violation(what,
				      "race: it %s bytes %llu to %llu of %s of %llu bytes, which %s on stream %u %s, "
				      "and nothing orders the two",
				      write ? "writes" : "reads", (unsigned long long)(begin - region->base),
				      (unsigned long long)(access.end - region->base),
				      region->host ? "registered memory" : "device memory",
				      (unsigned long long)region->bytes, a->what, a->lane,
				      a->write ? "writes" : "reads");
	}
	note(region, &access);
}

/* In a context that has failed nothing runs any more, whether the host has seen that or not. */
void sim_check_unused(struct sim_region *region, const char *call)
{
	uint32_t i;

	for (i = 0; i < region->n_accesses && !sim.sticky; i++) {
		const struct sim_access *a = &region->accesses[i];

		if (sim.host.at[a->lane] < a->epoch)
			sim_violation(call, "%s on stream %u may still %s the memory: the host has not seen its end",
				      a->what, a->lane, a->write ? "write" : "read");
	}
}

/* -- host memory -------------------------------------------------------------------------------------------------- */

static uint64_t hash_rows(const uint8_t *host, uint64_t pitch, uint64_t width, uint64_t rows)
{
	uint64_t hash = 0xcbf29ce484222325u, r, i, word;

	for (r = 0; r < rows; r++, host += pitch) {
		for (i = 0; i + 8 <= width; i += 8) {
			memcpy(&word, host + i, 8);
			hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
			hash ^= hash >> 29;
		}
		for (; i < width; i++)
			hash = (hash ^ host[i]) * 0x100000001b3u;
	}
	return hash;
}

static void end_loan(struct loan **at)
{
	struct loan *loan = *at;

	if (!fails_on_purpose() && hash_rows(loan->host, loan->pitch, loan->width, loan->rows) != loan->hash)
		sim_violation("copy from host memory",
			      "%llu rows of %llu bytes at %p were changed before the host had seen the end of the copy",
			      (unsigned long long)loan->rows, (unsigned long long)loan->width,
			      (const void *)loan->host);
	*at = loan->next;
	free(loan);
}

static void end_deposit(struct deposit **at)
{
	struct deposit *deposit = *at;

	memcpy(deposit->host, deposit->data, deposit->bytes);
	*at = deposit->next;
	if (!*at)
		deposits_end = at;
	free(deposit);
}

void sim_lend(const struct sim_stream *stream, const uint8_t *host, uint64_t pitch, uint64_t width, uint64_t rows)
{
	struct loan *loan = malloc(sizeof *loan);

	if (!loan)
		abort();
	*loan = (struct loan){loans,
			      host,
			      pitch,
			      width,
			      rows,
			      hash_rows(host, pitch, width, rows),
			      stream->clock.at[stream->lane],
			      stream->lane};
	loans = loan;
}

void sim_deposit(const struct sim_stream *stream, uint8_t *host, const uint8_t *from, uint64_t bytes)
{
	struct deposit *deposit = malloc(sizeof *deposit + bytes);

	if (!deposit)
		abort();
	*deposit = (struct deposit){NULL, host, bytes, stream->clock.at[stream->lane], stream->lane};
	memcpy(deposit->data, from, bytes);
	sim_poison(host, bytes);
	*deposits_end = deposit;
	deposits_end = &deposit->next;
}

void sim_host_sees(const struct sim_clock *clock)
{
	struct deposit **d = &deposits;
	struct loan **l = &loans;

	sim_join(&sim.host, clock);
	while (*d) {
		if (sim.host.at[(*d)->lane] >= (*d)->epoch)
			end_deposit(d);
		else
			d = &(*d)->next;
	}
	while (*l) {
		if (sim.host.at[(*l)->lane] >= (*l)->epoch)
			end_loan(l);
		else
			l = &(*l)->next;
	}
}

/* The device itself is about to read or write host memory. */
void sim_settle_range(const uint8_t *host, uint64_t bytes, bool write)
{
	struct deposit **d = &deposits;
	struct loan **l = &loans;

	while (*d) {
		if ((*d)->host < host + bytes && host < (*d)->host + (*d)->bytes)
			end_deposit(d);
		else
			d = &(*d)->next;
	}
	while (*l && write) {
		const uint64_t span = (*l)->pitch * ((*l)->rows - 1) + (*l)->width;

		if ((*l)->host < host + bytes && host < (*l)->host + span)
			end_loan(l);
		else
			l = &(*l)->next;
	}
}
