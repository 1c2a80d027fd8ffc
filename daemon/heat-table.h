/* SPDX-License-Identifier: MIT */
/*
 * heat-table - how much each expert of a model was wanted, over sessions, daemons and reboots: what lasts.
 *
 * Law: a model is its digest, whatever its name is, and has one table, which all of its sessions feed. A cell is a
 * number of (token, expert) pairs that routers chose, hits in a worker's own slots included; dummy steps bring nothing.
 * It ages by steps, not by time: S are the steps of all sessions together, and each N-th of them halves what is there.
 * What comes comes in batches (heat_table_age, then heat_table_add), and all is in whole numbers:
 *
 *   k = (S + n) / N - S / N        times that a batch of n steps goes over a multiple of N
 *   c = c >> k, then c + d / max(k, 1)        of each cell, which the batch brings d pairs, stopping at its largest
 *
 * So a batch that is within N steps is counted whole. One that is longer is as if its pairs had come evenly.
 *
 * The table lies in a memory file (heat_page), which a successor takes over, and from time to time on disk
 * (heat_encode, heat_decode): little-endian, with a checksum, and for one model only. Nothing that a file contains can
 * do more than be refused. Pure but for the memory; nothing here waits. The reactor's alone.
 */
#ifndef DAEMON_HEAT_TABLE_H
#define DAEMON_HEAT_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "moe-error.h"
#include "uapi/moe_manifest.h"

#define HEAT_FILE_MAGIC 0x3174616568656f6dull /* "moeheat1" */
#define HEAT_FILE_VERSION 1
#define HEAT_CELLS_MAX (1u << 24) /* a file of 64 MiB */

/* In front of the cells, in memory and on disk. */
struct heat_page {
	uint64_t magic;
	uint32_t version, rows, experts, reserved;
	uint8_t digest[MOE_DIGEST_BYTES];
	uint64_t steps, saved_steps; /* saved_steps: of what is on disk */
	uint64_t checksum;           /* XXH3-64 of all, itself being 0; on disk only */
	uint32_t cells[];            /* [rows][experts] */
};

/* 0: no table can be so large, or it has no cell. */
uint64_t heat_bytes(uint32_t rows, uint32_t experts);

/* A new one, in zeroed memory of heat_bytes(). */
void heat_page_init(struct heat_page *page, uint32_t rows, uint32_t experts, const uint8_t *digest);
/* Whether `bytes` of memory are one of this shape and model, but for the checksum. */
bool heat_page_good(const struct heat_page *page, uint64_t bytes, uint32_t rows, uint32_t experts,
		    const uint8_t *digest);

/* So many steps were made. Returns by what the pairs of the batch are to be divided, at least 1. `every` >= 1. */
uint64_t heat_table_age(struct heat_page *page, uint64_t steps, uint64_t every);

static inline void heat_table_add(struct heat_page *page, uint32_t cell, uint64_t pairs)
{
	const uint64_t sum = page->cells[cell] + pairs;

	page->cells[cell] = sum > UINT32_MAX ? UINT32_MAX : (uint32_t)sum;
}

/* All cells, and the steps, are 0 again. */
void heat_table_forget(struct heat_page *page);

/* What is on disk: heat_bytes(), `to` being as large. */
void heat_encode(struct heat_page *to, const struct heat_page *page);
/* Into the page, which keeps its shape and digest: 0, or -EBADMSG and the reason (without the file's name), and the
 * page is as it was. */
int heat_decode(struct heat_page *page, const void *from, uint64_t bytes, struct moe_error *err);

#endif
