/* SPDX-License-Identifier: MIT */
#include "device/device.h"

#include <string.h>

#include "base/util.h"

static const struct device_ops *const backends[] = {&device_host};

const struct device_ops *device_find(const char *name)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(backends); i++)
		if (strcmp(backends[i]->name, name) == 0)
			return backends[i];
	return NULL;
}
