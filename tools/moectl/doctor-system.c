/* SPDX-License-Identifier: MIT */
/* doctor-system - what moectl doctor looks for in the kernel, the driver of GPUs and the disks, and what to type. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "doctor.h"
#include "moectl.h"
#include "uapi/moe_kmod.h"

#define PAGE 4096 /* what the daemon's direct reads are aligned to */

static bool read_line(const char *path, char *to, size_t bytes)
{
	_cleanup_fclose_ FILE *file = fopen(path, "re");

	if (!file || !fgets(to, (int)bytes, file))
		return false;
	to[strcspn(to, "\n")] = '\0';
	return true;
}

static bool read_below(const char *root, const char *path, char *to, size_t bytes)
{
	char whole[PATH_MAX];

	snprintf(whole, sizeof whole, "%s%s", root, path);
	return read_line(whole, to, bytes);
}

static int64_t number_below(const char *root, const char *path)
{
	char whole[PATH_MAX];

	snprintf(whole, sizeof whole, "%s%s", root, path);
	return host_read_number(whole);
}

/* The word in brackets, or NULL; in `line`. */
static char *chosen_word(char *line)
{
	char *word = strchr(line, '['), *end = word ? strchr(word, ']') : NULL;

	if (end)
		*end = '\0';
	return end ? word + 1 : NULL;
}

/* The word among the flags of the first CPU: the kernel's, as it may not use what the CPU itself would have. */
bool lacks_1g(const char *root)
{
	char path[PATH_MAX], line[8192];
	_cleanup_fclose_ FILE *file = NULL;

	snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
	file = fopen(path, "re");
	if (!file)
		file = fopen("/proc/cpuinfo", "re");
	while (file && fgets(line, sizeof line, file))
		if (strncmp(line, "flags", 5) == 0)
			return !strstr(line, " pdpe1gb");
	return false;
}

/* Of a kernel without NUMA the one node's are the machine's. */
static void look_for_pages(const char *root, int node, const char *size, int64_t *total, int64_t *free_pages)
{
	char folder[PATH_MAX], path[PATH_MAX + 32];

	snprintf(folder, sizeof folder, "%s/sys/devices/system/node", root);
	if (access(folder, F_OK) == 0)
		snprintf(folder, sizeof folder, "%s/sys/devices/system/node/node%d/hugepages/hugepages-%s", root, node,
			 size);
	else
		snprintf(folder, sizeof folder, "%s/sys/kernel/mm/hugepages/hugepages-%s", root, size);
	snprintf(path, sizeof path, "%s/nr_hugepages", folder);
	if (host_read_number(path) < 0)
		return;
	*total = host_read_number(path);
	snprintf(path, sizeof path, "%s/free_hugepages", folder);
	*free_pages = host_read_number(path);
}

void host_look_below(struct host *host, const char *root)
{
	char line[128], *word;

	for (uint32_t i = 0; i < host->n_nodes; i++) {
		struct host_node *n = &host->nodes[i];

		look_for_pages(root, n->id, "1048576kB", &n->huge_1g_total, &n->huge_1g_free);
		look_for_pages(root, n->id, "2048kB", &n->huge_2m_total, &n->huge_2m_free);
	}
	if (read_below(root, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", line, sizeof line) &&
	    (word = chosen_word(line)))
		snprintf(host->thp_shmem, sizeof host->thp_shmem, "%.15s", word);
}

/* -- settings of the kernel --------------------------------------------------------------------------------------- */

void add_sysctl(struct report *r, const char *check, const char *name, const char *line)
{
	struct remedy *remedy = remedies_add(&r->remedies, check, r->root, "/etc/sysctl.d/60-moe-expertd-%s.conf",
					     name);

	if (!remedy)
		return;
	snprintf(remedy->text, sizeof remedy->text, "# By moectl doctor --fix.\n%s\n", line);
	snprintf(remedy->next, sizeof remedy->next, "sysctl -p %.200s", remedy->path + strlen(r->root));
}

/* Of a file below /sys/kernel/mm, at boot. */
static void add_tmpfile(struct report *r, const char *check, const char *name, const char *path, const char *word)
{
	struct remedy *remedy = remedies_add(&r->remedies, check, r->root, "/etc/tmpfiles.d/moe-expertd-%s.conf", name);

	if (!remedy)
		return;
	snprintf(remedy->text, sizeof remedy->text, "# By moectl doctor --fix.\nw %s - - - - %s\n", path, word);
	snprintf(remedy->next, sizeof remedy->next, "systemd-tmpfiles --create %.200s", remedy->path + strlen(r->root));
}

/* The pool's memory is bound and its threads are pinned: there is nothing to move, and looking for it costs faults. */
void check_numa_balancing(struct report *r, const struct host *host)
{
	const int64_t on = number_below(r->root, "/proc/sys/kernel/numa_balancing");

	if (on < 0) {
		check(r, FINE, "NUMA balancing", NULL, "this kernel has none");
	} else if (on == 0 || host->n_nodes < 2) {
		check(r, FINE, "NUMA balancing", NULL, "%s", on ? "on, and one node: does nothing" : "off");
	} else {
		check(r, NOTE, "NUMA balancing", "sysctl kernel.numa_balancing=0",
		      "on: the kernel unmaps pages to see who uses them, though all are where they belong");
		add_sysctl(r, "NUMA balancing", "numa", "kernel.numa_balancing = 0");
	}
}

static void check_shmem(struct report *r, const struct host *host)
{
	const char *path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled", *what = "transparent huge shmem";

	if (!*host->thp_shmem) {
		check(r, NOTE, what, "mount /sys", "unknown");
	} else if (strcmp(host->thp_shmem, "deny") == 0) {
		check(r, NOTE, what, "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled", "denied");
		add_tmpfile(r, what, "thp-shmem", path, "advise");
	} else {
		check(r, FINE, what, NULL, "shmem_enabled is %s", host->thp_shmem);
	}
}

void check_transparent(struct report *r, const struct host *host)
{
	const char *path = "/sys/kernel/mm/transparent_hugepage/enabled", *what = "transparent huge pages";
	char line[128], *word;

	check_shmem(r, host);
	if (!read_below(r->root, path, line, sizeof line) || !(word = chosen_word(line))) {
		check(r, NOTE, what, "mount /sys, or boot a kernel that has them", "unknown");
	} else if (strcmp(word, "never") == 0) {
		check(r, NOTE, what, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
		      "enabled is never: intermediate results of the pool are on small pages");
		add_tmpfile(r, what, "thp", path, "madvise");
	} else {
		check(r, FINE, what, NULL, "enabled is %s", word);
	}
}

/* -- limits ------------------------------------------------------------------------------------------------------- */

#define MEMLOCK_MIN (64 << 20) /* what readers and reactor register */

/* Of a process, in bytes; -1 unlimited, -2 unknown. */
static int64_t memlock_of(const char *root, int pid)
{
	static const char key[] = "Max locked memory";
	char path[PATH_MAX], line[256];
	_cleanup_fclose_ FILE *file = NULL;

	snprintf(path, sizeof path, "%s/proc/%d/limits", root, pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file)) {
		const char *value = line + sizeof key - 1;

		if (strncmp(line, key, sizeof key - 1) != 0)
			continue;
		value += strspn(value, " ");
		return strncmp(value, "unlimited", 9) == 0 ? -1 : strtoll(value, NULL, 10);
	}
	return -2;
}

/* The unit of the system's service manager that a process belongs to, "" none. */
static void unit_of(const char *root, int pid, char *to, size_t size)
{
	char path[PATH_MAX], line[PATH_MAX];
	_cleanup_fclose_ FILE *file = NULL;

	*to = '\0';
	snprintf(path, sizeof path, "%s/proc/%d/cgroup", root, pid);
	file = fopen(path, "re");
	while (pid && file && fgets(line, sizeof line, file)) {
		const char *name = strrchr(line, '/');
		const size_t n = name ? strcspn(name + 1, "\n") : 0;

		if (strstr(line, "/system.slice/") && n > 8 && n < size && memcmp(name + 1 + n - 8, ".service", 8) == 0)
			snprintf(to, size, "%.*s", (int)n, name + 1);
	}
}

static void add_memlock(struct report *r, const char *unit)
{
	struct remedy *remedy;

	if (*unit)
		remedy = remedies_add(&r->remedies, "RLIMIT_MEMLOCK", r->root,
				      "/etc/systemd/system/%s.d/60-memlock.conf", unit);
	else
		remedy = remedies_add(&r->remedies, "RLIMIT_MEMLOCK", r->root,
				      "/etc/security/limits.d/60-moe-expertd.conf");
	if (!remedy)
		return;
	if (*unit) {
		snprintf(remedy->text, sizeof remedy->text,
			 "# By moectl doctor --fix.\n[Service]\nLimitMEMLOCK=infinity\n");
		snprintf(remedy->next, sizeof remedy->next, "systemctl daemon-reload && systemctl restart %.200s",
			 unit);
	} else {
		snprintf(remedy->text, sizeof remedy->text,
			 "# By moectl doctor --fix: for what members of the group start by hand.\n"
			 "@moe-expertd - memlock unlimited\n");
		snprintf(remedy->next, sizeof remedy->next, "usermod -aG moe-expertd USER, and log in anew");
	}
}

void check_memlock(struct report *r, const struct host *host, int pid)
{
	const int64_t of_daemon = pid ? memlock_of(r->root, pid) : -2;
	const int64_t limit = of_daemon == -2 ? host->memlock : of_daemon;
	const char *whose = of_daemon == -2 ? "of this shell" : "of the daemon";
	char size[SHOW_TEXT], unit[256];

	if (limit < 0 || limit >= MEMLOCK_MIN) {
		check(r, FINE, "RLIMIT_MEMLOCK", NULL, "%s %s",
		      limit < 0 ? "unlimited" : show_bytes(size, (double)limit), whose);
		return;
	}
	unit_of(r->root, of_daemon == -2 ? 0 : pid, unit, sizeof unit);
	check(r, NOTE, "RLIMIT_MEMLOCK", "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit",
	      "%s %s: reads use unregistered buffers", show_bytes(size, (double)limit), whose);
	add_memlock(r, unit);
}

/* -- devices ------------------------------------------------------------------------------------------------------ */

/* Module=yes: a daemon would not start without it. Of an image it is not known what will be there when it runs. */
static enum verdict without_module(const struct report *r, const struct settings *s, enum verdict else_verdict)
{
	const char *use = s->values[SETTING_MODULE].text;

	return !use || strcmp(use, "yes") != 0 ? else_verdict : *r->root ? NOTE : PROBLEM;
}

/* moe_expert, which may be absent: nothing depends on it (docs/KERNEL-MODULE.md), unless it is said to. */
void check_module(struct report *r, const struct settings *s)
{
	const enum verdict absent = without_module(r, s, FINE);
	_cleanup_(cleanup_close) int fd = -EBADF;
	struct moe_kmod_features f = {0};
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s%s", r->root, MOE_KMOD_DEVICE);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT && absent == FINE)
		check(r, FINE, "kernel module", NULL, "no %s: optional (docs/KERNEL-MODULE.md)", MOE_KMOD_DEVICE);
	else if (fd < 0 && errno == ENOENT)
		check(r, absent, "kernel module", "modprobe moe_expert; or Module=auto in expertd.conf(5)",
		      "no %s, and Module=yes: a daemon does not start without", MOE_KMOD_DEVICE);
	else if (fd < 0)
		check(r, NOTE, "kernel module", "usermod -aG moe-expertd USER, and log in anew",
		      MOE_KMOD_DEVICE ": this user may not use it: %s", strerror(errno));
	else if (ioctl(fd, MOE_KMOD_FEATURES, &f) < 0)
		check(r, without_module(r, s, NOTE), "kernel module",
		      "modprobe -r moe_expert; modprobe moe_expert (of this release)",
		      MOE_KMOD_DEVICE " does not say what it can: %s", strerror(errno));
	else
		check(r, FINE, "kernel module", NULL, "version %u:%s%s%s; moectl status says if the daemon uses it",
		      f.abi, f.features & MOE_KMOD_HAS_POOLS ? " pools" : "",
		      f.features & MOE_KMOD_HAS_LEASES ? " leases" : "",
		      f.features & MOE_KMOD_HAS_EVENTS ? " events" : "");
}

/* A driver for GPUs that only --push-cuda and workers need. */
void check_gpu(struct report *r)
{
	char version[256];

	if (!read_below(r->root, "/proc/driver/nvidia/version", version, sizeof version)) {
		check(r, FINE, "GPU driver", NULL, "none of NVIDIA: workers compute on the CPU");
		return;
	}
	if (access("/dev/nvidiactl", F_OK) < 0)
		check(r, NOTE, "GPU driver", "nvidia-modprobe -u -c 0", "%s; no /dev/nvidiactl", version);
	else if (access("/dev/nvidiactl", R_OK | W_OK) < 0)
		check(r, NOTE, "GPU driver", "add the user to the group of /dev/nvidiactl (ls -l /dev/nvidiactl)",
		      "%s; this user may not use it: %s", version, strerror(errno));
	else
		check(r, FINE, "GPU driver", NULL, "%s", version);
}

/* -- disks -------------------------------------------------------------------------------------------------------- */

/* A file with weights: `path` itself or the first one in it. */
static int open_weights(const char *path)
{
	_cleanup_(cleanup_close) int folder = open(path, O_RDONLY | O_CLOEXEC);
	struct dirent *entry;
	struct stat st;
	int fd = -1;
	DIR *dir;

	if (folder < 0 || fstat(folder, &st) < 0)
		return -1;
	if (S_ISREG(st.st_mode))
		return open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	dir = fdopendir(dup(folder));
	while (dir && fd < 0 && (entry = readdir(dir))) {
		const char *dot = strrchr(entry->d_name, '.');

		if (dot && (strcmp(dot, ".safetensors") == 0 || strcmp(dot, ".gguf") == 0))
			fd = openat(folder, entry->d_name, O_RDONLY | O_DIRECT | O_CLOEXEC);
		if (fd < 0 && errno == EINVAL)
			break;
	}
	if (dir)
		closedir(dir);
	return fd;
}

/* Steps in which a file can be read directly; 0: this kernel or file system does not say. */
static unsigned direct_align(int fd)
{
#ifdef STATX_DIOALIGN
	struct statx st;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 && st.stx_mask & STATX_DIOALIGN)
		return st.stx_dio_offset_align;
#endif
	return 0;
}

void check_disks(struct report *r, const json_t *models)
{
	const json_t *model;
	size_t i;

	json_array_foreach (models, i, model) {
		const char *path = get_text(model, "path");
		_cleanup_(cleanup_close) int fd = -1;
		char what[128];
		unsigned align;

		snprintf(what, sizeof what, "disk of %s", get_text(model, "name"));
		errno = 0;
		fd = open_weights(path);
		if (fd < 0 && errno == EINVAL) {
			check(r, NOTE, what, "move the model to ext4, XFS or btrfs on a disk of this machine",
			      "%s: no direct reads there; loads go through the page cache", path);
			continue;
		}
		if (fd < 0) {
			check(r, NOTE, what,
			      errno == EACCES || errno == EPERM
				      ? "run moectl doctor as the daemon's user, or root"
				      : "put the model there, or name where it is (Model=, moectl load)",
			      "%s: %s", path, errno ? strerror(errno) : "no file with weights there");
			continue;
		}
		align = direct_align(fd);
		if (align > PAGE)
			check(r, NOTE, what, "make the file system with blocks of 4096 bytes at most",
			      "direct reads in steps of %u bytes: loads go through the page cache", align);
		else if (align)
			check(r, FINE, what, NULL, "direct reads in steps of %u bytes", align);
		else
			check(r, FINE, what, NULL, "direct reads");
	}
}
