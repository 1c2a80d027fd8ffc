/* SPDX-License-Identifier: MIT */
/* How many experts a prefetch step copies: the staircase, the cost model's choice, and that it learns. */
#include <math.h>
#include <stdlib.h>

#include "base/util.h"
#include "policy/heat.h"
#include "ncopy.h"
#include "tests/tap.h"

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

static void test_staircase(void)
{
	static const struct {
		uint64_t tokens;
		uint32_t n_copy;
	} steps[] = {{1, 80},     {1023, 80},  {1024, 128}, {1999, 128}, {2000, 144},   {4096, 176},
		     {7999, 224}, {8000, 240}, {8192, 240}, {8193, 256}, {100000, 256}, {UINT64_MAX, 256}};
	size_t i;

	for (i = 0; i < ARRAY_LEN(steps); i++)
		ok(moe_ncopy_staircase(steps[i].tokens) == steps[i].n_copy, "%llu tokens: %u copies",
		   (unsigned long long)steps[i].tokens, steps[i].n_copy);
}

static double cost(const struct ncopy *nc, const uint64_t *keys, uint32_t missing, uint32_t n, uint64_t bytes,
		   uint64_t hit_experts, uint64_t hit_pairs)
{
	double device_pairs = (double)hit_pairs, cpu_pairs = 0, device, cpu;
	uint32_t i;

	for (i = 0; i < missing; i++)
		*(i < n ? &device_pairs : &cpu_pairs) += heat_pairs(keys[i]);
	device = nc->copy_ns_per_byte * (double)bytes * n + nc->device.per_expert * (double)(hit_experts + n) +
		 nc->device.per_pair * device_pairs;
	cpu = nc->cpu.per_expert * (missing - n) + nc->cpu.per_pair * cpu_pairs;
	return MAX(device, cpu);
}

static void test_choice(void)
{
	uint64_t keys[256];
	bool best = true, bounded = true;
	int round;

	for (round = 0; round < 2000; round++) {
		const uint32_t missing = below(257), room = below(300);
		const uint64_t bytes = 1 + below(1u << 24), hits = below(64), hit_pairs = hits * below(20);
		struct ncopy nc;
		uint32_t i, n;

		ncopy_init(&nc, bytes, bytes, 1 + below(64));
		nc.copy_ns_per_byte = below(1000) / 1000.0;
		for (i = 0; i < missing; i++)
			keys[i] = heat_key(1 + below(1 + below(100)), (int32_t)i);
		heat_sort(keys, missing);
		n = ncopy_choose(&nc, keys, missing, room, bytes, hits, hit_pairs);
		bounded &= n <= MIN(missing, room);
		for (i = 0; i <= MIN(missing, room); i++)
			best &= cost(&nc, keys, missing, n, bytes, hits, hit_pairs) <=
				cost(&nc, keys, missing, i, bytes, hits, hit_pairs) * (1 + 1e-9);
	}
	ok(bounded, "the choice stays within missing experts and room");
	ok(best, "and no other number costs less (2000 random cases)");
}

static void test_extremes(void)
{
	struct ncopy nc;
	uint64_t keys[64];
	uint32_t i;

	for (i = 0; i < 64; i++)
		keys[i] = heat_key(1000 - i, (int32_t)i);
	ncopy_init(&nc, 1 << 20, 1 << 20, 4);
	nc.copy_ns_per_byte = 1e6;
	ok(ncopy_choose(&nc, keys, 64, 64, 1 << 20, 0, 0) == 0, "copies that cost too much are not made");
	nc.copy_ns_per_byte = 1e-9;
	nc.device = (struct ncopy_line){1e-9, 1e-9, 0, 0, 0, 0, 0};
	ok(ncopy_choose(&nc, keys, 64, 64, 1 << 20, 0, 0) == 64, "copies that cost nothing are all made");
	ok(ncopy_choose(&nc, keys, 64, 10, 1 << 20, 0, 0) == 10, "as far as there is room");
	ok(ncopy_choose(&nc, keys, 0, 10, 1 << 20, 5, 50) == 0, "nothing is missing: nothing is copied");
}

static bool near(double have, double want, double share)
{
	return fabs(have - want) <= share * want;
}

static void test_learns_line(void)
{
	struct ncopy nc;
	int i;

	ncopy_init(&nc, 1 << 20, 1 << 20, 1);
	for (i = 0; i < 400; i++) {
		const uint64_t experts = 1 + below(64), pairs = experts * (1 + below(40));
		const double noise = 0.95 + below(100) / 1000.0;

		ncopy_measure(&nc.cpu, experts, pairs,
			      (uint64_t)(noise * (90000.0 * (double)experts + 700.0 * (double)pairs)));
	}
	ok(near(nc.cpu.per_expert, 90000, 0.15) && near(nc.cpu.per_pair, 700, 0.3),
	   "from noisy steps of all sizes: %.0f ns an expert (90000), %.0f ns a pair (700)", nc.cpu.per_expert,
	   nc.cpu.per_pair);
	for (i = 0; i < 200; i++) {
		const uint64_t experts = 1 + below(64), pairs = experts * (1 + below(40));

		ncopy_measure(&nc.cpu, experts, pairs, 45000 * experts + 350 * pairs);
	}
	ok(near(nc.cpu.per_expert, 45000, 0.05) && near(nc.cpu.per_pair, 350, 0.05),
	   "a host twice as fast is noticed: %.0f, %.0f", nc.cpu.per_expert, nc.cpu.per_pair);
}

static void test_learns_from_decode_alone(void)
{
	struct ncopy nc;
	int i;

	ncopy_init(&nc, 1 << 20, 1 << 20, 1);
	for (i = 0; i < 2000; i++)
		ncopy_measure(&nc.cpu, 8, 8, 8 * 50000);
	ok(near(nc.cpu.per_expert + nc.cpu.per_pair, 50000, 0.02) && nc.cpu.per_expert > 0 && nc.cpu.per_pair > 0,
	   "one pair an expert tells the sum of both rates, and neither becomes zero");
	ncopy_measure(&nc.cpu, 0, 0, 1000);
	ncopy_measure(&nc.cpu, 4, 4, 0);
	ok(isfinite(nc.cpu.per_expert) && isfinite(nc.cpu.per_pair), "samples without work or time are ignored");
}

static void test_random_samples_stay_sane(void)
{
	struct ncopy nc;
	bool sane = true;
	int i;

	ncopy_init(&nc, 1 << 20, 1 << 20, 1);
	for (i = 0; i < 20000; i++) {
		ncopy_measure(&nc.device, below(512), below(100000), tap_random(&seed) >> (20 + below(40)));
		sane &= isfinite(nc.device.per_expert) && isfinite(nc.device.per_pair) && nc.device.per_expert >= 0 &&
			nc.device.per_pair >= 0 && nc.device.per_expert + nc.device.per_pair > 0;
	}
	ok(sane, "whatever is measured, rates stay finite, not negative and not both zero");
}

static void test_learns_copy(void)
{
	struct ncopy nc;
	int i;

	ncopy_init(&nc, 1, 1, 1);
	ncopy_measure_copy(&nc, 1000, 1000000000);
	ok(nc.copy_ns_per_byte < 20, "one slow small copy says little (%.3f ns a byte)", nc.copy_ns_per_byte);
	for (i = 0; i < 100; i++)
		ncopy_measure_copy(&nc, 64 << 20, (64 << 20) / 4);
	ok(near(nc.copy_ns_per_byte, 0.25, 0.01), "many large ones say all (%.3f ns a byte)", nc.copy_ns_per_byte);
	ncopy_measure_copy(&nc, 0, 5);
	ok(near(nc.copy_ns_per_byte, 0.25, 0.01), "no bytes, no sample");
}

/* What reading and copying cost, added up read by read. */
static void test_read_pays(void)
{
	struct ncopy nc;
	bool right = true;
	int round;

	for (round = 0; round < 2000; round++) {
		const uint64_t bytes = 1 + below(1u << 24);
		const uint32_t reads = 1 + below(6);
		double by_copy, by_read = 0, memory;

		ncopy_init(&nc, bytes, bytes, 1);
		nc.copy_ns_per_byte = 0.001 + below(1000) / 1000.0;
		nc.read_ns_per_byte = nc.copy_ns_per_byte * (0.5 + below(200) / 100.0);
		nc.device.per_expert = (double)bytes * below(1000) / 10000.0;
		memory = nc.device.per_expert;
		by_copy = nc.copy_ns_per_byte * (double)bytes + memory;
		for (uint32_t i = 0; i < reads; i++) {
			by_copy += memory;
			by_read += nc.read_ns_per_byte * (double)bytes;
		}
		right &= near(by_read, by_copy, 1e-9) || ncopy_read_pays(&nc, reads, bytes) == (by_read < by_copy);
	}
	ok(right, "reading pays exactly where it takes less than a copy, its writing and its reading");
	nc.read_ns_per_byte = nc.copy_ns_per_byte = 1 / 50.0;
	nc.device.per_expert = 1e6 / 4000.0;
	ok(ncopy_read_pays(&nc, 1, 1000000) && !ncopy_read_pays(&nc, 2, 1000000),
	   "50 GB/s beside 4 TB/s: what is read once, not what is read twice");
	ok(!ncopy_read_pays(&nc, INFINITY, 1000000), "what is read for ever is copied");
}

static void test_choose_reads(void)
{
	uint64_t keys[64];
	bool best = true;
	int round;

	for (round = 0; round < 2000; round++) {
		const uint32_t n = below(65);
		struct ncopy_rest rest = {.bytes = 1 + below(1u << 20), .copies = below(4), .cpu_experts = n};
		double had, cost[65];
		struct ncopy nc;
		uint64_t pairs = 0;
		uint32_t i;

		ncopy_init(&nc, rest.bytes, rest.bytes, 1 + below(16));
		nc.read_ns_per_byte = below(1000) / 1000.0;
		rest.device_experts = below(8);
		rest.device_pairs = rest.device_experts;
		for (i = 0; i < n; i++) {
			keys[i] = heat_key(1 + below(4), (int32_t)i);
			rest.cpu_pairs += heat_pairs(keys[i]);
		}
		heat_sort(keys, n);
		for (i = 0; i <= n; i++) {
			const double device = (double)rest.bytes *
						      (nc.copy_ns_per_byte * rest.copies + nc.read_ns_per_byte * i) +
					      nc.device.per_expert * (double)rest.device_experts +
					      nc.device.per_pair * (double)(rest.device_pairs + pairs);
			const double cpu = nc.cpu.per_expert * (n - i) +
					   nc.cpu.per_pair * (double)(rest.cpu_pairs - pairs);

			cost[i] = MAX(device, cpu);
			pairs += i < n ? heat_pairs(keys[i]) : 0;
		}
		had = cost[ncopy_choose_reads(&nc, keys, n, &rest)];
		for (i = 0; i <= n; i++)
			best &= had <= cost[i] * (1 + 1e-9);
	}
	ok(best, "no other number of reads ends earlier (2000 random cases)");
}

static void test_learns_read(void)
{
	struct ncopy nc;
	int i;

	ncopy_init(&nc, 1 << 20, 1 << 20, 1);
	nc.device = (struct ncopy_line){.per_expert = 1000, .per_pair = 10};
	for (i = 0; i < 100; i++)
		ncopy_measure_read(&nc, 64 << 20, 5, 4, 8, (64 << 20) / 2 + 4 * 1000 + 13 * 10);
	ok(near(nc.read_ns_per_byte, 0.5, 0.01), "what a launch took beyond its slots is the reading (%.3f ns a byte)",
	   nc.read_ns_per_byte);
	for (i = 0; i < 100; i++)
		ncopy_measure_read(&nc, 64 << 20, 5, 4, 8, 1);
	ok(nc.read_ns_per_byte >= 0, "and never less than nothing");
}

int main(void)
{
	seed = tap_seed();
	test_staircase();
	test_choice();
	test_extremes();
	test_learns_line();
	test_learns_from_decode_alone();
	test_random_samples_stay_sane();
	test_learns_copy();
	test_read_pays();
	test_choose_reads();
	test_learns_read();
	return tap_done();
}
