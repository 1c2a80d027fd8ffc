/* SPDX-License-Identifier: MIT */
#include <errno.h>

#include "base/futex.h"
#include "base/util.h"
#include "device/device-host.h"

void host_word_write(uint32_t *word, uint32_t value)
{
	/* Partner: the acquire load in device_word_reached. */
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
	futex_wake(word, FUTEX_ALL);
}

int host_word_wait(const uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
	const uint64_t end = timeout_ns ? now_ns() + timeout_ns : 0;

	for (;;) {
		const uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
		const uint64_t now = timeout_ns ? now_ns() : 0;

		if ((int32_t)(seen - value) >= 0)
			return 0;
		if (timeout_ns && now >= end)
			return -ETIMEDOUT;
		futex_wait(word, seen, timeout_ns ? end - now : 0);
	}
}
