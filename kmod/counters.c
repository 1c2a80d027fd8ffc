// SPDX-License-Identifier: GPL-2.0-only
/*
 * What there is now and what was, as files in /sys/class/misc/moe-expert: for
 * a look, and for tests that want to see that nothing is left.
 */
#include <linux/device.h>
#include <linux/sysfs.h>

#include "moe_expert.h"

static ssize_t show(u64 *counter, char *to)
{
	u64 value;

	mutex_lock(&moe_lock);
	value = *counter;
	moe_unlock();
	return sysfs_emit(to, "%llu\n", value);
}

#define COUNTER(field)                                                        \
	static ssize_t field##_show(struct device *dev,                       \
				    struct device_attribute *attr, char *to)  \
	{                                                                     \
		return show(&moe_counters.field, to);                         \
	}                                                                     \
	static DEVICE_ATTR_RO(field)

COUNTER(clients); /* open devices */
COUNTER(pools);	  /* with those that are released and still leased */
COUNTER(pages);	  /* huge pages that are pinned */
COUNTER(leases);  /* that are held */
COUNTER(events);  /* that wait to be read */
COUNTER(exports); /* dma-bufs that exist */
COUNTER(adopted); /* pools since the module was loaded */
COUNTER(leased);  /* leases since then */
COUNTER(dropped); /* of these, those that ended without DROP */
COUNTER(queues);    /* that have not ended */
COUNTER(requests);  /* that wait, are worked on, or are to be reaped */
COUNTER(submitted); /* requests since the module was loaded */
COUNTER(answered);  /* of these, those that were answered */
COUNTER(reissued);  /* how often one was fetched again */
COUNTER(abandoned); /* those whose client took them back or went */

/* A line for each queue. */
static ssize_t queue_show(struct device *dev, struct device_attribute *attr,
			  char *to)
{
	ssize_t bytes;

	mutex_lock(&moe_lock);
	bytes = moe_queue_show(to);
	moe_unlock();
	return bytes;
}
static DEVICE_ATTR_RO(queue);

static struct attribute *moe_attrs[] = {
	&dev_attr_clients.attr,
	&dev_attr_pools.attr,
	&dev_attr_pages.attr,
	&dev_attr_leases.attr,
	&dev_attr_events.attr,
	&dev_attr_exports.attr,
	&dev_attr_adopted.attr,
	&dev_attr_leased.attr,
	&dev_attr_dropped.attr,
	&dev_attr_queues.attr,
	&dev_attr_requests.attr,
	&dev_attr_submitted.attr,
	&dev_attr_answered.attr,
	&dev_attr_reissued.attr,
	&dev_attr_abandoned.attr,
	&dev_attr_queue.attr,
	NULL
};

static const struct attribute_group moe_group = { .attrs = moe_attrs };
const struct attribute_group *moe_groups[] = { &moe_group, NULL };
