/* SPDX-License-Identifier: MIT */
/*
 * test-kmod - the kernel module moe_expert, from loading it to unloading it, in a machine of its own.
 *
 * As root it loads /moe_expert.ko. Between parts nothing may be left: no pool, page, lease, event or open device, no
 * huge page that is not free, no word in the kernel's log that must not be there.
 */
#include "tests/kmod/device.h"

#include <sys/klog.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/utsname.h>

static int64_t huge_before;

static void nothing_is_left(const char *part)
{
	static const char *const names[] = {"clients", "pools",   "pages",  "leases",
					    "events",  "exports", "queues", "requests"};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		ok(counter_becomes(names[i], 0), "%s: no %s are left", part, names[i]);
	ok(huge_becomes(huge_before), "%s: all huge pages are free (%lld of %lld)", part, (long long)huge_free(),
	   (long long)huge_before);
	ok(log_is_clean(), "%s: the kernel's log is clean", part);
}

static void many_times(void)
{
	const char *asked = getenv("TEST_CYCLES");
	const int cycles = asked ? atoi(asked) : 100;
	int good = 0, refused = 0;

	for (int i = 0; i < cycles; i++) {
		int dev, rc = module_load();
		uint64_t id;

		dev = rc < 0 ? -1 : device_open();
		id = dev < 0 ? 0 : pool_new(dev, 1, (unsigned)i, 1);
		close(dev);
		/* With a pool, and with an open device, it is in use. */
		refused += module_unload() < 0 && errno == EAGAIN;
		dev = device_open();
		pool_release(dev, id);
		refused += module_unload() < 0 && errno == EAGAIN;
		close(dev);
		good += module_unload() == 0;
	}
	ok(good == cycles, "loaded and unloaded %d times of %d", good, cycles);
	ok(refused == 2 * cycles, "unloading refused while a pool exists, and while the device is open (%d)", refused);
	ok(counter("pools") == -1, "nothing is left in /sys/class/misc");
	ok(huge_becomes(huge_before), "all huge pages are free");
	ok(log_is_clean(), "the kernel's log is clean");
}

int main(void)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} parts[] = {
		{"commands", test_commands},
		{"adopt", test_adopt},
		{"pools", test_pools},
		{"keepers", test_keepers},
		{"leases", test_leases},
		{"events", test_events},
		{"deaths", test_deaths},
		{"seals", test_seals},
		{"traces", test_traces},
		{"exports", test_exports},
		{"queues", test_queues},
		{"shares", test_shares},
		{"rings", test_rings},
		{"queue-deaths", test_queue_deaths},
		{"ring-deaths", test_ring_deaths},
		{"vgem", test_vgem},
		{"fails", test_fails},
	};
	unsigned long long seed = tap_seed();
	struct utsname name;

	uname(&name);
	diag("Linux %s", name.release);
	huge_before = huge_free();
	require(huge_before >= 32, "there are huge pages: %lld", (long long)huge_before);
	mkdir(DEBUGGING, 0755);
	if (mount("none", DEBUGGING, "debugfs", 0, NULL) < 0)
		diag("no debugfs");
	leaks_forget();
	klogctl(5 /* clear: what the kernel said of its own start is not meant */, NULL, 0);
	require(module_load() == 0, "the module loads");
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		if (getenv("TEST_PART") && strcmp(getenv("TEST_PART"), parts[i].name) != 0)
			continue;
		parts[i].run();
		nothing_is_left(parts[i].name);
	}
	test_hostile(&seed);
	nothing_is_left("hostile");
	ok(module_unload() == 0, "the module is unloaded");
	many_times();
	leaks_none();
	locks_watched();
	return tap_done();
}
