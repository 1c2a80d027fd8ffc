/* SPDX-License-Identifier: MIT */
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/host.h"
#include "base/util.h"
#include "bench.h"

#define PEAK_ROUNDS 20000u /* between two looks at the clock: some 100 us */

/* -- memory ------------------------------------------------------------------------------------------------------- */

struct reader {
	pthread_t thread;
	pthread_barrier_t *start;
	const char *from;
	char *to; /* instead of reading only */
	bool past_caches;
	uint64_t bytes;
	int way;                           /* of reading */
	uint64_t (*peak)(uint64_t rounds); /* instead of reading */
	double peak_ns;
	uint64_t operations;
	uint64_t begin_ns, end_ns;
	volatile uint64_t sum; /* so that the reads are not removed */
};

/* A stream, or some side by side, with lines asked for 1 KiB ahead or not: what reads fastest on the machines measured
 * (docs/decisions). */
static inline __attribute__((always_inline)) uint64_t read_streams(const char *from, uint64_t bytes, int streams,
								   bool ask)
{
	const uint64_t share = bytes / (uint64_t)streams & ~(uint64_t)63;
	__m256i sum = _mm256_setzero_si256();

	for (uint64_t i = 0; i < share; i += 64)
		for (int s = 0; s < streams; s++) {
			const char *p = from + (uint64_t)s * share + i;

			if (ask)
				_mm_prefetch(p + 1024, _MM_HINT_T0);
			sum = _mm256_xor_si256(sum, _mm256_load_si256((const __m256i *)p));
			sum = _mm256_xor_si256(sum, _mm256_load_si256((const __m256i *)(p + 32)));
		}
	return (uint64_t)_mm256_extract_epi64(sum, 0);
}

static uint64_t read_way(const char *from, uint64_t bytes, int way)
{
	switch (way) {
	case 0:
		return read_streams(from, bytes, 2, true);
	case 1:
		return read_streams(from, bytes, 4, true);
	case 2:
		return read_streams(from, bytes, 4, false);
	default:
		return read_streams(from, bytes, 1, false);
	}
}

static void copy_past_caches(char *to, const char *from, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += 64) {
		_mm_prefetch(from + i + 2048, _MM_HINT_T0);
		_mm256_stream_si256((__m256i *)(to + i), _mm256_loadu_si256((const __m256i *)(from + i)));
		_mm256_stream_si256((__m256i *)(to + i + 32), _mm256_loadu_si256((const __m256i *)(from + i + 32)));
	}
	_mm_sfence();
}

static void *reader_main(void *userdata)
{
	struct reader *r = userdata;

	pthread_barrier_wait(r->start);
	r->begin_ns = now_ns();
	if (r->peak)
		do
			r->operations += r->peak(PEAK_ROUNDS);
		while ((double)(now_ns() - r->begin_ns) < r->peak_ns);
	else if (r->to)
		r->past_caches ? copy_past_caches(r->to, r->from, r->bytes) : (void)memcpy(r->to, r->from, r->bytes);
	else
		r->sum = read_way(r->from, r->bytes, r->way);
	r->end_ns = now_ns();
	return NULL;
}

struct seats {
	cpu_set_t of; /* the CPUs that this thread may use */
	uint32_t n;
	uint16_t cpus[HOST_CPUS_MAX];
};

static void find_seats(struct seats *ret)
{
	struct host *host = calloc(1, sizeof *host);

	if (!host)
		abort();
	host_read(host, false);
	ret->n = 0;
	for (uint32_t k = 0; k < HOST_CPUS_MAX; k++)
		for (uint32_t i = 0; i < host->n_nodes; i++)
			if (k < host->nodes[i].n_cpus && ret->n < ARRAY_LEN(ret->cpus))
				ret->cpus[ret->n++] = host->nodes[i].cpus[k];
	free(host);
}

/* Where threads sit, as the pool deals them (pool.h): by turns on the nodes, on each first one to a core. Not on
 * siblings of one core while others are idle: the limit would be half of what the pool has. */
static const struct seats *seats(void)
{
	static struct seats known;
	cpu_set_t now;

	sched_getaffinity(0, sizeof now, &now);
	if (!known.n || !CPU_EQUAL(&known.of, &now))
		find_seats(&known);
	known.of = now;
	return &known;
}

static void start_reader(struct reader *reader, const struct seats *at, uint32_t i)
{
	pthread_attr_t attr;
	size_t bytes;
	cpu_set_t *one = at->n ? host_cpu_mask(at->cpus[i % at->n], &bytes) : NULL;

	pthread_attr_init(&attr);
	if (one)
		pthread_attr_setaffinity_np(&attr, bytes, one);
	if (pthread_create(&reader->thread, &attr, reader_main, reader))
		abort(); /* the barrier would wait for ever */
	pthread_attr_destroy(&attr);
	CPU_FREE(one);
}

/* Runs the reader's copies in n threads, each on a CPU of its own as far as there are; nanoseconds from the first begin
 * to the last end. */
static double run_readers(struct reader *readers, uint32_t n)
{
	const struct seats *at = seats();
	uint64_t begin = UINT64_MAX, end = 0;
	pthread_barrier_t start;

	pthread_barrier_init(&start, NULL, n);
	for (uint32_t i = 0; i < n; i++) {
		readers[i].start = &start;
		start_reader(&readers[i], at, i);
	}
	for (uint32_t i = 0; i < n; i++) {
		pthread_join(readers[i].thread, NULL);
		begin = MIN(begin, readers[i].begin_ns);
		end = MAX(end, readers[i].end_ns);
	}
	pthread_barrier_destroy(&start);
	return (double)(end - begin);
}

double limit_read(const void *memory, uint64_t bytes, uint32_t threads)
{
	struct reader readers[HOST_CPUS_MAX];
	const uint32_t n = MIN(MAX(threads, 1u), (uint32_t)ARRAY_LEN(readers));
	const uint64_t share = bytes / LIMIT_READ_WAYS / n & ~(uint64_t)255;
	double best = 0;

	for (int way = 0; way < LIMIT_READ_WAYS; way++) {
		const char *part = (const char *)memory + (uint64_t)way * n * share;

		for (uint32_t i = 0; i < n; i++)
			readers[i] = (struct reader){.from = part + i * share, .bytes = share, .way = way};
		best = MAX(best, (double)(share * n) / run_readers(readers, n));
	}
	return best;
}

double limit_copy(void *to, const void *from, uint64_t bytes, uint32_t threads, bool past_caches)
{
	struct reader readers[HOST_CPUS_MAX];
	const uint32_t n = MIN(MAX(threads, 1u), (uint32_t)ARRAY_LEN(readers));
	const uint64_t share = bytes / n & ~(uint64_t)63;

	for (uint32_t i = 0; i < n; i++)
		readers[i] = (struct reader){.from = (const char *)from + i * share,
					     .to = (char *)to + i * share,
					     .bytes = i + 1 < n ? share : bytes - i * share,
					     .past_caches = past_caches};
	return run_readers(readers, n);
}

double limit_compute(uint64_t (*peak)(uint64_t rounds), double ns, uint32_t threads)
{
	struct reader readers[HOST_CPUS_MAX];
	const uint32_t n = MIN(MAX(threads, 1u), (uint32_t)ARRAY_LEN(readers));
	double taken, operations = 0;

	for (uint32_t i = 0; i < n; i++)
		readers[i] = (struct reader){.peak = peak, .peak_ns = ns};
	taken = run_readers(readers, n);
	for (uint32_t i = 0; i < n; i++)
		operations += (double)readers[i].operations;
	return operations / taken;
}

void *limit_memory(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, bytes, MADV_HUGEPAGE);
	memset(p, 1, bytes);
	return p;
}
