/* SPDX-License-Identifier: MIT */
#include "ncopy.h"

#include "base/util.h"
#include "policy/heat.h"

/* Start values, measured on two cores of an Emerald Rapids guest (AVX-512): one thread reads 17.5 GB/s of weights and
 * does 40 GFLOP/s of BF16 products. A pair costs 2 operations per weight, and a weight has 2 bytes: one per byte. */
#define READ_NS_PER_BYTE (1 / 17.5)
#define PAIR_NS_PER_BYTE (1 / 40.0)
#define COPY_NS_PER_BYTE (1 / 10.0)

#define COPY_WINDOW (64.0 * (1 << 20)) /* bytes after which an older copy counts half */
#define LINE_FORGETS (1.0 / 16)

uint32_t moe_ncopy_staircase(uint64_t tokens)
{
	if (tokens < 1024)
		return 80;
	if (tokens <= 8192)
		return (uint32_t)(tokens / 1000) * 16 + 112;
	return 256;
}

static void line_sample(struct ncopy_line *l, double e, double p, double weight)
{
	l->ee += weight * (e * e - l->ee);
	l->ep += weight * (e * p - l->ep);
	l->pp += weight * (p * p - l->pp);
	l->e += weight * (e - l->e);
	l->p += weight * (p - l->p);
}

/* Two made-up samples that the start values explain exactly, one of few pairs and one of many. */
static void line_init(struct ncopy_line *l, double per_expert, double per_pair)
{
	const double few = per_expert + per_pair, many = per_expert + 64 * per_pair;

	*l = (struct ncopy_line){.per_expert = per_expert, .per_pair = per_pair};
	line_sample(l, 1 / few, 1 / few, 1);
	line_sample(l, 1 / many, 64 / many, 0.5);
}

void ncopy_init(struct ncopy *ret, uint64_t cpu_bytes, uint64_t device_bytes, uint32_t cpu_threads)
{
	const double cpu = (double)cpu_bytes / (double)MAX(cpu_threads, 1), device = (double)device_bytes;

	ret->copy_ns_per_byte = ret->read_ns_per_byte = COPY_NS_PER_BYTE;
	line_init(&ret->cpu, cpu * READ_NS_PER_BYTE, cpu * PAIR_NS_PER_BYTE);
	line_init(&ret->device, device * READ_NS_PER_BYTE, device * PAIR_NS_PER_BYTE);
}

static void rate_sample(double *ns_per_byte, uint64_t bytes, double ns)
{
	double b = (double)bytes;

	*ns_per_byte += b / (b + COPY_WINDOW) * (ns / b - *ns_per_byte);
}

void ncopy_measure_copy(struct ncopy *ncopy, uint64_t bytes, uint64_t ns)
{
	if (bytes && ns)
		rate_sample(&ncopy->copy_ns_per_byte, bytes, (double)ns);
}

/* Least squares of a * e + b * p = 1. Samples that all have the same ratio of experts to pairs say nothing about the
 * ratio of a to b: then both are scaled. Neither is ever negative. */
static void line_solve(struct ncopy_line *l)
{
	const double det = l->ee * l->pp - l->ep * l->ep;
	double a = l->per_expert, b = l->per_pair;

	if (det > 1e-6 * l->ee * l->pp) {
		a = (l->e * l->pp - l->p * l->ep) / det;
		b = (l->p * l->ee - l->e * l->ep) / det;
	} else {
		double scale = (a * l->e + b * l->p) / (a * a * l->ee + 2 * a * b * l->ep + b * b * l->pp);

		a *= scale;
		b *= scale;
	}
	if (a < 0) {
		a = 0;
		b = l->p / l->pp;
	} else if (b < 0) {
		a = l->e / l->ee;
		b = 0;
	}
	l->per_expert = a;
	l->per_pair = b;
}

void ncopy_measure(struct ncopy_line *line, uint64_t experts, uint64_t pairs, uint64_t ns)
{
	if (!experts || !pairs || !ns)
		return;
	line_sample(line, (double)experts / (double)ns, (double)pairs / (double)ns, LINE_FORGETS);
	line_solve(line);
}

static double line_ns(const struct ncopy_line *l, uint64_t experts, uint64_t pairs)
{
	return l->per_expert * (double)experts + l->per_pair * (double)pairs;
}

uint32_t ncopy_choose(const struct ncopy *ncopy, const uint64_t *keys, uint32_t missing, uint32_t room,
		      uint64_t slot_bytes, uint64_t hit_experts, uint64_t hit_pairs)
{
	const double copy_ns = ncopy->copy_ns_per_byte * (double)slot_bytes;
	uint64_t device_pairs = hit_pairs, cpu_pairs = 0;
	uint32_t n, best = 0;
	double best_ns = 0;

	for (n = 0; n < missing; n++)
		cpu_pairs += heat_pairs(keys[n]);
	for (n = 0; n <= MIN(missing, room); n++) {
		double device = copy_ns * n + line_ns(&ncopy->device, hit_experts + n, device_pairs);
		double cpu = line_ns(&ncopy->cpu, missing - n, cpu_pairs), ns = MAX(device, cpu);

		if (n == 0 || ns < best_ns) {
			best = n;
			best_ns = ns;
		}
		if (n < missing) {
			device_pairs += heat_pairs(keys[n]);
			cpu_pairs -= heat_pairs(keys[n]);
		}
	}
	return best;
}

void ncopy_measure_read(struct ncopy *ncopy, uint64_t bytes, uint64_t read_pairs, uint64_t experts, uint64_t pairs,
			uint64_t ns)
{
	const double others = line_ns(&ncopy->device, experts, pairs + read_pairs);

	if (bytes && ns)
		rate_sample(&ncopy->read_ns_per_byte, bytes, MAX((double)ns - others, 0));
}

bool ncopy_read_pays(const struct ncopy *ncopy, double reads, uint64_t bytes)
{
	const double memory = ncopy->device.per_expert / (double)bytes;

	return reads * ncopy->read_ns_per_byte < ncopy->copy_ns_per_byte + (1 + reads) * memory;
}

uint32_t ncopy_choose_reads(const struct ncopy *ncopy, const uint64_t *keys, uint32_t n, const struct ncopy_rest *rest)
{
	const double bytes = (double)rest->bytes, copy_ns = ncopy->copy_ns_per_byte * bytes * rest->copies;
	const double read_ns = ncopy->read_ns_per_byte * bytes;
	uint64_t pairs = 0;
	uint32_t i, best = 0;
	double best_ns = 0;

	for (i = 0; i <= n; i++) {
		double device = copy_ns + read_ns * i +
				line_ns(&ncopy->device, rest->device_experts, rest->device_pairs + pairs);
		double cpu = line_ns(&ncopy->cpu, rest->cpu_experts - i, rest->cpu_pairs - pairs);
		double ns = MAX(device, cpu);

		if (i == 0 || ns < best_ns) {
			best = i;
			best_ns = ns;
		}
		if (i < n)
			pairs += heat_pairs(keys[i]);
	}
	return best;
}
