/* SPDX-License-Identifier: MIT */
#include "device/device.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"

static const struct device_ops *const backends[] = {
	&device_host,
#ifdef MOE_CUDA
	&device_cuda,
#endif
};

static const struct device_ops *find_backend(const char *name, size_t length)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(backends); i++)
		if (strlen(backends[i]->name) == length && memcmp(backends[i]->name, name, length) == 0)
			return backends[i];
	return NULL;
}

/* The last back-end, the one that is no fall-back, if its first device opens. */
static const struct device_ops *best_backend(void)
{
	const struct device_ops *best = backends[ARRAY_LEN(backends) - 1];
	struct device *device;

	if (best->open(&device, "", NULL) < 0)
		return backends[0];
	best->close(device);
	return best;
}

int device_find(const char *name, const struct device_ops **ret, const char **ret_which, struct moe_error *err)
{
	const size_t length = strcspn(name, ":");
	const struct device_ops *ops = find_backend(name, length);

	if (strcmp(name, "auto") == 0)
		ops = best_backend();
	else if (!ops && length == 4 && memcmp(name, "cuda", 4) == 0)
		return moe_error_set(err, -EINVAL, "device '%s': this library was built without CUDA; it has 'host'",
				     name);
	if (!ops)
		return moe_error_set(err, -EINVAL, "device '%s' found; expected 'host', 'cuda', 'cuda:N' or 'auto'",
				     name);
	*ret = ops;
	*ret_which = name[length] ? name + length + 1 : "";
	return 0;
}
