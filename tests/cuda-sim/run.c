/* SPDX-License-Identifier: MIT */
/* The thread that runs all commands: of the streams whose first command may run, one that the seed picks. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cuda-sim/sim.h"

#define POLL_NS_MIN 20000u
#define POLL_NS_MAX 500000u

static pthread_t thread;
static bool stopping;

/* -- words -------------------------------------------------------------------------------------------------------- */

/* What came before the latest writes of a word by a stream. */
struct word {
	uint64_t address;
	struct sim_clock clock;
};

static struct word *words;
static size_t n_words;

static struct word *find_word(uint64_t address, bool make)
{
	size_t i;

	for (i = 0; i < n_words && words[i].address != address; i++)
		;
	if (i == n_words && make) {
		words = realloc(words, ++n_words * sizeof *words);
		if (!words)
			abort();
		words[i] = (struct word){.address = address};
	}
	return i < n_words ? &words[i] : NULL;
}

void sim_words_forget(const struct sim_region *region)
{
	size_t i, kept = 0;

	for (i = 0; i < n_words; i++)
		if (words[i].address < region->base || words[i].address >= region->base + region->bytes)
			words[kept++] = words[i];
	n_words = kept;
	if (n_words == 0) {
		free(words);
		words = NULL;
	}
}

static uint64_t word_at(const struct sim_command *c)
{
	const struct sim_region *region = sim_resolve(c->call, c->value.word, c->value.wide ? 8 : 4, false);
	const uint8_t *at = region->memory + (c->value.word - region->base);

	return c->value.wide ? __atomic_load_n((const uint64_t *)(const void *)at, __ATOMIC_ACQUIRE)
			     : __atomic_load_n((const uint32_t *)(const void *)at, __ATOMIC_ACQUIRE);
}

static bool word_holds(const struct sim_command *c)
{
	const uint64_t word = word_at(c), value = c->value.value;

	switch (c->value.flags & 3) {
	case CU_STREAM_WAIT_VALUE_GEQ:
		return c->value.wide ? (int64_t)(word - value) >= 0 : (int32_t)((uint32_t)word - (uint32_t)value) >= 0;
	case CU_STREAM_WAIT_VALUE_EQ:
		return word == value;
	case CU_STREAM_WAIT_VALUE_AND:
		return (word & value) != 0;
	default:
		return (c->value.wide ? ~(word | value) : (uint32_t) ~(word | value)) != 0;
	}
}

/* The host may write words in its own memory: then the stream goes on after all that the host has seen. */
static void end_wait(struct sim_stream *s, const struct sim_command *c)
{
	const struct word *word = find_word(c->value.word, false);

	if (sim_region_at(c->value.word)->host)
		sim_join(&s->clock, &sim.host);
	if (word)
		sim_join(&s->clock, &word->clock);
}

static void run_write(struct sim_stream *s, const struct sim_command *c)
{
	struct sim_region *region = sim_resolve(c->call, c->value.word, c->value.wide ? 8 : 4, true);
	uint8_t *at = region->memory + (c->value.word - region->base);

	if (!(c->value.flags & CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)) {
		sim_join(&find_word(c->value.word, true)->clock, &s->clock);
		if (region->host)
			sim_host_sees(&s->clock);
	}
	if (c->value.wide)
		__atomic_store_n((uint64_t *)(void *)at, c->value.value, __ATOMIC_RELEASE);
	else
		__atomic_store_n((uint32_t *)(void *)at, (uint32_t)c->value.value, __ATOMIC_RELEASE);
}

/* -- the other commands ------------------------------------------------------------------------------------------- */

static uint8_t *touched(const struct sim_stream *s, const struct sim_command *c, uint64_t address, bool is_host,
			uint64_t bytes, bool write)
{
	struct sim_region *region = is_host ? sim_resolve_host(c->call, (void *)(uintptr_t)address, bytes, write)
					    : sim_resolve(c->call, address, bytes, write);
	const uint64_t at = address - (is_host ? region->host : region->base);

	sim_touch(region, region->base + at, bytes, write, s, c->call);
	if (region->host)
		sim_settle_range(region->memory + at, bytes, write);
	return region->memory + at;
}

static void run_copy(const struct sim_stream *s, const struct sim_command *c)
{
	const uint64_t span = c->copy.pitch * (c->copy.rows - 1) + c->copy.width, bytes = c->copy.rows * c->copy.width;
	const uint8_t *from = touched(s, c, c->copy.from, c->copy.from_host, span, false);
	uint8_t *to = touched(s, c, c->copy.to, c->copy.to_host, bytes, true);
	uint64_t i;

	if (c->copy.to_host) {
		sim_deposit(s, to, from, bytes);
		return;
	}
	for (i = 0; i < c->copy.rows; i++)
		memmove(to + i * c->copy.width, from + i * c->copy.pitch, c->copy.width);
	if (c->copy.from_host)
		sim_lend(s, from, c->copy.pitch, c->copy.width, c->copy.rows);
}

static void run_fill(const struct sim_stream *s, const struct sim_command *c)
{
	uint8_t *to = touched(s, c, c->fill.to, false, c->fill.count * c->fill.unit, true);
	uint64_t i;

	for (i = 0; i < c->fill.count; i++)
		memcpy(to + i * c->fill.unit, &c->fill.value, c->fill.unit);
}

struct toucher {
	const struct sim_stream *stream;
	const struct sim_command *command;
};

static void touch_range(void *arg, uint64_t begin, uint64_t bytes, bool write)
{
	const struct toucher *t = arg;
	struct sim_region *region = sim_resolve(t->command->launch.kernel->name, begin, bytes, write);

	if (region->host)
		sim_settle_range(region->memory + (begin - region->base), bytes, write);
	sim_touch(region, begin, bytes, write, t->stream, t->command->launch.kernel->name);
}

/* The lock is free meanwhile: the host goes on beside a kernel. */
static void run_kernel(const struct sim_stream *s, const struct sim_command *c)
{
	const struct sim_kernel *kernel = c->launch.kernel;
	const struct sim_launch launch = {c->launch.grid, c->launch.block, c->launch.shared};
	struct toucher toucher = {s, c};

	sim_expose(true);
	kernel->ranges(c->launch.params, &launch, touch_range, &toucher);
	pthread_mutex_unlock(&sim.lock);
	kernel->run(c->launch.params, &launch);
	pthread_mutex_lock(&sim.lock);
	sim_check_ends(kernel->name);
}

/* -- order -------------------------------------------------------------------------------------------------------- */

static bool may_run(const struct sim_stream *s, uint64_t now)
{
	const struct sim_command *c = s->first;

	if (!c || c->not_before_ns > now)
		return false;
	if (sim.sticky || c->dropped)
		return true;
	if (c->op == SIM_WAIT_EVENT)
		return c->turn->done;
	return c->op != SIM_WAIT_VALUE || word_holds(c);
}

/* How long until the thread must look again: words are written and times go by without a signal. UINT64_MAX: it need
 * not. */
static uint64_t look_again_ns(uint64_t now, uint64_t poll_ns)
{
	const struct sim_stream *s;
	uint64_t ns = UINT64_MAX;

	for (s = sim.streams; s; s = s->next) {
		uint64_t mine = UINT64_MAX;

		if (s->first && s->first->not_before_ns > now)
			mine = s->first->not_before_ns - now;
		else if (s->first && s->first->op == SIM_WAIT_VALUE)
			mine = poll_ns;
		ns = mine < ns ? mine : ns;
	}
	return ns;
}

static struct sim_stream *pick(uint64_t now)
{
	struct sim_stream *s, *found = NULL;
	unsigned n = 0;

	for (s = sim.streams; s; s = s->next)
		if (may_run(s, now) && sim_random() % ++n == 0)
			found = s;
	return found;
}

static void run_body(struct sim_stream *s, const struct sim_command *c)
{
	switch (c->op) {
	case SIM_COPY:
		run_copy(s, c);
		break;
	case SIM_FILL:
		run_fill(s, c);
		break;
	case SIM_KERNEL:
		run_kernel(s, c);
		break;
	case SIM_WAIT_EVENT:
		if (!c->dropped)
			sim_join(&s->clock, &c->turn->clock);
		break;
	case SIM_WAIT_VALUE:
		if (!c->dropped)
			end_wait(s, c);
		break;
	case SIM_WRITE_VALUE:
		run_write(s, c);
		break;
	case SIM_RECORD:
		break;
	}
}

/* The context has failed, or does now: nothing is done any more, but all that waits goes on. */
static bool fails(const struct sim_command *c)
{
	const bool works = c->op == SIM_COPY || c->op == SIM_FILL || c->op == SIM_KERNEL;

	if (!sim.sticky && works) {
		sim.runs++;
		if (sim.run_fail_at && sim.runs == sim.run_fail_at)
			sim.sticky = c->op == SIM_KERNEL ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_ERROR_LAUNCH_FAILED;
	}
	return sim.sticky != CUDA_SUCCESS;
}

static void run_one(struct sim_stream *s)
{
	struct sim_command *c = s->first;

	s->running = true;
	sim_join(&s->clock, &c->since);
	s->clock.at[s->lane]++;
	if (!fails(c))
		run_body(s, c);
	if (c->op == SIM_RECORD) {
		c->turn->clock = s->clock;
		c->turn->time_ns = sim_now();
		c->turn->done = true;
	}
	if (c->op == SIM_RECORD || c->op == SIM_WAIT_EVENT)
		sim_turn_drop(c->turn);
	if (c->op == SIM_KERNEL)
		free(c->launch.params);
	s->first = c->next;
	if (!s->first)
		s->last = &s->first;
	free(c);
	s->running = false;
	if (s->doomed && sim_stream_idle(s))
		sim_stream_forget(s);
	pthread_cond_broadcast(&sim.changed);
}

static void *run_all(void *arg)
{
	uint64_t poll_ns = POLL_NS_MIN;

	pthread_mutex_lock(&sim.lock);
	while (!stopping) {
		const uint64_t now = sim_now();
		struct sim_stream *s = pick(now);
		uint64_t ns, end;

		if (s) {
			run_one(s);
			poll_ns = POLL_NS_MIN;
			continue;
		}
		/* Not after each kernel: it takes longer than most of them. The host had no turn since. */
		sim_expose(false);
		ns = look_again_ns(now, poll_ns);
		poll_ns = poll_ns < POLL_NS_MAX ? poll_ns * 3 / 2 : poll_ns;
		if (ns == UINT64_MAX) {
			pthread_cond_wait(&sim.work, &sim.lock);
			continue;
		}
		end = now + ns;
		pthread_cond_timedwait(&sim.work, &sim.lock,
				       &(struct timespec){(time_t)(end / 1000000000u), (long)(end % 1000000000u)});
	}
	pthread_mutex_unlock(&sim.lock);
	return NULL;
}

void sim_run_start(void)
{
	static bool with_clock;
	pthread_condattr_t clock;

	if (!with_clock) {
		pthread_condattr_init(&clock);
		pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
		pthread_cond_init(&sim.work, &clock);
		pthread_condattr_destroy(&clock);
		with_clock = true;
	}
	stopping = false;
	if (pthread_create(&thread, NULL, run_all, NULL) != 0)
		abort();
}

/* Under the lock, which is free while the thread ends. */
void sim_run_stop(void)
{
	stopping = true;
	pthread_cond_signal(&sim.work);
	pthread_mutex_unlock(&sim.lock);
	pthread_join(thread, NULL);
	pthread_mutex_lock(&sim.lock);
}
