/* SPDX-License-Identifier: MIT */
/*
 * times - how long requests and steps waited and worked, by part: histograms of a session and of a model's layer.
 *
 * Law: each request counts in its session's and in its layer's, by the reactor, which is their only writer: two loads
 * and two stores a part. Dummy steps and failed requests count nowhere. Those of layers lie in
 * the model's tally, which a daemon that takes over goes on with; those of sessions begin anew with it.
 * What steps waited is the client's to count (moe_ring.h, the law of the waits): a layer's histogram of it has what
 * sessions that have ended left, a session's own is read where it is.
 *
 * Memory is constant: 4 parts x 304 buckets x 8 bytes, 9.5 KiB, for each layer of a model and for each session, and 2.4
 * KiB for each layer of each session in its client region, charged to its user. A quantile is off by 1/16 at most.
 */
#ifndef DAEMON_TIMES_H
#define DAEMON_TIMES_H

#include "base/histogram.h"

enum times_part {
	TIMES_WAIT,    /* of steps: the worker, in moe_wait */
	TIMES_QUEUE,   /* of requests: from the arrival to the first unit of work ... */
	TIMES_COMPUTE, /* ... and from there to the end, of a COMPUTE ... */
	TIMES_COPY,    /* ... and of a FILL that copies */
	TIMES_PARTS
};

struct times {
	struct histogram part[TIMES_PARTS];
};

#endif
