/* SPDX-License-Identifier: MIT */
/* push-copies - what of a slice's range a device fetches from where: the pool's copies, in a device's words. Pure. */
#ifndef DAEMON_PUSH_COPIES_H
#define DAEMON_PUSH_COPIES_H

#include "daemon/pool.h"
#include "device/device.h"

/* Rows of a plane in a range: the rest of one, whole ones, the beginning of one. */
#define PUSH_COPIES_EACH 3

/* The copies of a range of a slice, to `base` and what follows: how many. maps[share] is where a pool file lies.
 * `copies` has room for PUSH_COPIES_EACH of each plane of each share. */
uint32_t push_copies(struct device_copy *copies, const struct pool_copy *copy, uint8_t *const *maps, device_ptr base);

#endif
