/* SPDX-License-Identifier: MIT */
/*
 * ncopy - how many missing experts a prefetch step copies to the device: the rest is the CPU's.
 *
 * Two rules. The staircase is the original design's table over the number of tokens. The cost model ranks the missing
 * experts by heat and takes the n that makes
 *
 *     max(T_copy(n) + T_device(hits and the n hottest), T_cpu(the rest))
 *
 * smallest, with T_copy = bytes * rate, and T_device and T_cpu each a line a * experts + b * pairs: a is what reading
 * an expert's weights costs once, b what one pair's arithmetic costs. The rates start from figures of one machine and
 * are corrected by every measured completion: the copy rate by an average that forgets with the bytes copied, the lines
 * by least squares of the relative error, with moments that forget one sixteenth at each sample.
 *
 * A device may also read an expert where it lies, in the pool, without a copy. Either way its bytes pass the link once
 * for each copy or reading, and so, for an expert that would be read r times from a slot, reading costs less where
 *
 *     r * read < copy + (1 + r) * memory
 *
 * each in ns per byte: `copy` as above, `memory` what the device's line says of reading its own memory, once for the
 * copy's writing and r times for reading it back. `read` is an average as that of copies, of what launches took longer
 * than the line says of their other experts: so it has in it what reading over a link costs the device in latency and
 * in processors that wait. It starts as `copy` does.
 *
 * Pure: no clock, no lock, no allocation.
 */
#ifndef LIB_NCOPY_H
#define LIB_NCOPY_H

#include <stdbool.h>
#include <stdint.h>

/* 80 below 1,024 tokens; (tokens / 1000) * 16 + 112 from there to 8,192; 256 above. */
uint32_t moe_ncopy_staircase(uint64_t tokens);

/* ns = per_expert * experts + per_pair * pairs; the moments are those of e = experts / ns and p = pairs / ns. */
struct ncopy_line {
	double per_expert, per_pair;
	double ee, ep, pp, e, p;
};

struct ncopy {
	double copy_ns_per_byte, read_ns_per_byte;
	struct ncopy_line cpu, device;
};

/* What one expert weighs for whom: bytes read by the CPU pool and by the device, and the threads of the pool. */
void ncopy_init(struct ncopy *ret, uint64_t cpu_bytes, uint64_t device_bytes, uint32_t cpu_threads);

/* A completion: `bytes` were copied, or `experts` distinct experts with `pairs` pairs computed, in `ns`. Samples
 * without work or time are ignored. */
void ncopy_measure_copy(struct ncopy *ncopy, uint64_t bytes, uint64_t ns);
void ncopy_measure(struct ncopy_line *line, uint64_t experts, uint64_t pairs, uint64_t ns);

/*
 * The best n of 0 .. min(missing, room). `keys` are the missing experts' heat, hottest first; slot_bytes is what one
 * copy moves; hit_experts and hit_pairs are on the device anyway. Equal costs: the smaller n.
 */
uint32_t ncopy_choose(const struct ncopy *ncopy, const uint64_t *keys, uint32_t missing, uint32_t room,
		      uint64_t slot_bytes, uint64_t hit_experts, uint64_t hit_pairs);

/* A launch of `ns` in which the device computed experts in slots with their pairs, and read `bytes` in the pool for
 * read_pairs more. */
void ncopy_measure_read(struct ncopy *ncopy, uint64_t bytes, uint64_t read_pairs, uint64_t experts, uint64_t pairs,
			uint64_t ns);

/* Whether an expert of so many bytes that a slot would serve `reads` times is better read in the pool each time. */
bool ncopy_read_pays(const struct ncopy *ncopy, double reads, uint64_t bytes);

/* What the rest of a step is, when it is asked how many experts are read. */
struct ncopy_rest {
	uint64_t bytes; /* of an expert's slice */
	uint32_t copies;
	uint64_t device_experts, device_pairs, cpu_experts, cpu_pairs; /* if none is read */
};

/* How many of the CPU's experts `keys`, of this heat, hottest first, the device should read instead: the n that makes
 * max(device, CPU) smallest. Equal costs: the smaller n. */
uint32_t ncopy_choose_reads(const struct ncopy *ncopy, const uint64_t *keys, uint32_t n, const struct ncopy_rest *rest);

#endif
