/* SPDX-License-Identifier: MIT */
/* The commands of /dev/moe-importer, a device for tests that imports dma-bufs as a driver would. */
#ifndef TESTS_KMOD_IMPORTER_H
#define TESTS_KMOD_IMPORTER_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Attaches and maps the dma-buf, and keeps it so until LET_GO or close; one for each open device. */
struct moe_import {
	__s32 fd;
	__u32 direction; /* enum dma_data_direction */
	__u32 entries;   /* out: of the scatter list */
	__u32 shortest;  /* out: bytes of the shortest one */
	__u64 bytes;     /* out: of all */
	__u64 sum;       /* out: of their words of 8 bytes */
};

#define MOE_IMPORT _IOWR('i', 0, struct moe_import)
#define MOE_LET_GO _IO('i', 1)

#endif
