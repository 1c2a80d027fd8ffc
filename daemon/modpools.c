/* SPDX-License-Identifier: MIT */
#include "daemon/modpools.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/estate.h"
#include "daemon/events.h"
#include "uapi/moe_kmod.h"

#define NEEDED (MOE_KMOD_HAS_POOLS | MOE_KMOD_HAS_EVENTS)
#define NAME_PREFIX "moe-expertd:"
#define EVENTS_READ 64

static const char *const state_names[] = {"off", "absent", "refused", "unsuitable", "busy", "used"};

const char *modpools_state_name(enum modpools_state state)
{
	return state_names[state];
}

/* -- the device --------------------------------------------------------------------------------------------------- */

static int system_open(const char *path, int flags)
{
	return open(path, flags);
}

static int system_command(int fd, unsigned long command, void *arg)
{
	return ioctl(fd, command, arg);
}

static const struct modpools_ops system_ops = {system_open, system_command};

static int command(const struct modpools *m, unsigned long number, void *arg)
{
	return m->ops->command(m->source.fd, number, arg) < 0 ? -errno : 0;
}

static void set_state(struct modpools *m, enum modpools_state state, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static void set_state(struct modpools *m, enum modpools_state state, const char *format, ...)
{
	va_list args;

	m->state = state;
	va_start(args, format);
	vsnprintf(m->why, sizeof m->why, format, args);
	va_end(args);
}

static void ask_features(struct modpools *m)
{
	struct moe_kmod_features f = {0};
	struct moe_kmod_watch w = {0};
	int r = command(m, MOE_KMOD_FEATURES, &f);

	if (r < 0) {
		set_state(m, MODPOOLS_UNSUITABLE, "%s does not say what it can: %s; load the module of this release",
			  MOE_KMOD_DEVICE, strerror(-r));
		return;
	}
	m->abi = f.abi;
	m->features = f.features;
	if (f.abi != MOE_KMOD_ABI || (f.features & NEEDED) != NEEDED) {
		set_state(m, MODPOOLS_UNSUITABLE,
			  "%s has version %u with features 0x%" PRIx64
			  ", version %u with 0x%x is needed; load the module of this release",
			  MOE_KMOD_DEVICE, f.abi, (uint64_t)f.features, MOE_KMOD_ABI, NEEDED);
		return;
	}
	r = f.keeper ? command(m, MOE_KMOD_WATCH, &w) : -EPERM;
	if (r == -EBUSY)
		set_state(m, MODPOOLS_BUSY, "%s: another daemon uses it; end that one, or say Module=no",
			  MOE_KMOD_DEVICE);
	else if (r == -EPERM)
		set_state(m, MODPOOLS_REFUSED,
			  "%s: user %u does not own the node; a udev rule with OWNER= names who does", MOE_KMOD_DEVICE,
			  (unsigned)geteuid());
	else if (r < 0)
		set_state(m, MODPOOLS_UNSUITABLE, "%s tells no events: %s; load the module of this release",
			  MOE_KMOD_DEVICE, strerror(-r));
	else
		set_state(m, MODPOOLS_USED, "%s", "");
}

static void open_device(struct modpools *m)
{
	m->source.fd = m->ops->open(MOE_KMOD_DEVICE, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (m->source.fd >= 0)
		ask_features(m);
	else if (errno == ENOENT || errno == ENXIO || errno == ENODEV)
		set_state(m, MODPOOLS_ABSENT, "there is no %s; modprobe moe_expert, if it is wanted", MOE_KMOD_DEVICE);
	else
		set_state(m, MODPOOLS_REFUSED, "%s: %s; a udev rule with OWNER= names who may", MOE_KMOD_DEVICE,
			  strerror(errno));
	if (m->state != MODPOOLS_USED)
		m->source.fd = close_fd(m->source.fd);
}

int modpools_open(struct modpools *m, enum modpools_want want, const struct modpools_ops *ops, struct moe_error *err)
{
	*m = (struct modpools){.ops = ops ? ops : &system_ops, .source.fd = -1};
	if (want == MODPOOLS_NO)
		set_state(m, MODPOOLS_OFF, "Module=no");
	else
		open_device(m);
	if (want == MODPOOLS_YES && m->state != MODPOOLS_USED)
		return moe_error_set(err, -ENODEV, "Module=yes, but %s", m->why);
	if (m->state == MODPOOLS_USED)
		log_info("kernel module: in use, version %u", m->abi);
	else if (m->state > MODPOOLS_ABSENT)
		log_warning("kernel module: not used: %s", m->why);
	return 0;
}

static void told(struct modpools *m, const struct moe_kmod_event *e)
{
	if (e->type == MOE_KMOD_EVENT_LOST)
		m->lost += e->lease;
	if (e->type != MOE_KMOD_EVENT_DROPPED)
		return;
	m->dropped++;
	log_debug("kernel module: lease %" PRIu64 " on pool %" PRIu64 " ended with process %u", (uint64_t)e->lease,
		  (uint64_t)e->pool, e->pid);
}

static void events_ready(struct source *source, uint32_t events)
{
	struct modpools *m = container_of(source, struct modpools, source);
	struct moe_kmod_event list[EVENTS_READ];
	const ssize_t n = read(source->fd, list, sizeof list);

	for (size_t i = 0; n > 0 && i < (size_t)n / sizeof *list; i++)
		told(m, &list[i]);
	if (n < 0 && errno != EAGAIN && errno != EINTR) {
		log_warning("kernel module: its events cannot be read any more: %s", strerror(errno));
		loop_remove(m->loop, source);
		m->loop = NULL;
	}
}

int modpools_watch(struct modpools *m, struct loop *loop, struct moe_error *err)
{
	int r;

	if (m->state != MODPOOLS_USED)
		return 0;
	m->source.ready = events_ready;
	r = loop_add(loop, &m->source, err);
	if (r == 0)
		m->loop = loop;
	return r;
}

/* -- what lies there ---------------------------------------------------------------------------------------------- */

static int make_room(struct modpools *m, uint32_t more)
{
	const uint32_t room = MAX(2 * m->room, m->n_held + more);
	struct modpools_held *held;

	if (m->n_held + more <= m->room)
		return 0;
	held = reallocarray(m->held, room, sizeof *held);
	if (!held)
		return -ENOMEM;
	m->held = held;
	m->room = room;
	return 0;
}

static int hold(struct modpools *m, const struct modpools_held *pools, uint32_t n)
{
	const int r = make_room(m, n);

	for (uint32_t i = 0; i < n && r == 0; i++)
		m->held[m->n_held++] = pools[i];
	return r;
}

static void release(const struct modpools *m, const struct modpools_held *held)
{
	const int r = command(m, MOE_KMOD_RELEASE, &(struct moe_kmod_release){.id = held->id});

	if (r < 0)
		log_warning("kernel module: pool %" PRIu64 " of epoch %" PRIu64
			    " cannot be released: %s; its memory stays until the module's user or root does",
			    held->id, held->epoch, strerror(-r));
}

static void release_at(struct modpools *m, uint32_t i)
{
	release(m, &m->held[i]);
	m->held[i] = m->held[--m->n_held];
}

void modpools_release(struct modpools *m, uint64_t epoch)
{
	for (uint32_t i = m->n_held; i-- > 0;)
		if (m->held[i].epoch == epoch)
			release_at(m, i);
}

void modpools_settle(struct modpools *m)
{
	for (uint32_t i = m->n_held; i-- > 0;)
		if (m->held[i].unwanted)
			release_at(m, i);
}

bool modpools_has(const struct modpools *m, uint64_t epoch)
{
	bool has = false;

	for (uint32_t i = 0; i < m->n_held; i++)
		has |= m->held[i].epoch == epoch && !m->held[i].unwanted;
	return has;
}

uint32_t modpools_kept(const struct modpools *m)
{
	return m->n_held;
}

/* The next pool of this user's daemons: 1; 0: no more; -errno. */
static int next_pool(const struct modpools *m, struct moe_kmod_pool *pool)
{
	int r;

	do {
		*pool = (struct moe_kmod_pool){.id = pool->id};
		r = command(m, MOE_KMOD_POOL, pool);
	} while (r == 0 && (pool->owner != geteuid() || strncmp(pool->name, NAME_PREFIX, strlen(NAME_PREFIX)) != 0));
	return r == -ENOENT ? 0 : r < 0 ? r : 1;
}

uint32_t modpools_leases(const struct modpools *m)
{
	struct moe_kmod_pool pool = {0};
	uint32_t leases = 0;

	while (m->state == MODPOOLS_USED && next_pool(m, &pool) > 0)
		leases += pool.leases;
	return leases;
}

/* -- keeping ------------------------------------------------------------------------------------------------------ */

static uint8_t *make_blob(const struct resident *model, uint32_t *ret_bytes)
{
	const struct moe_manifest *manifest = model->manifest;
	_cleanup_free_ struct model_books *books = registry_new_books(model);
	struct modpools_blob head = {.magic = MODPOOLS_MAGIC,
				     .version = MODPOOLS_VERSION,
				     .n_pools = model->n_pools,
				     .manifest_bytes = manifest->bytes,
				     .books_bytes = books ? books->bytes : 0};
	const uint64_t bytes = sizeof head + head.manifest_bytes + head.books_bytes;
	uint8_t *blob = books && bytes <= MOE_KMOD_BLOB_MAX ? malloc(bytes) : NULL;

	if (!blob)
		return NULL;
	memcpy(head.digest, manifest->digest, sizeof head.digest);
	memcpy(blob, &head, sizeof head);
	memcpy(blob + sizeof head, manifest, head.manifest_bytes);
	memcpy(blob + sizeof head + head.manifest_bytes, books, head.books_bytes);
	*ret_bytes = (uint32_t)bytes;
	return blob;
}

static int give_pool(const struct modpools *m, const struct resident *model, uint32_t i, uint8_t *blob, uint32_t bytes,
		     struct modpools_gift *gift)
{
	const struct pages *pages = &model->pools[i];
	struct moe_kmod_adopt adopt = {.epoch = model->manifest->epoch,
				       .bytes = pages->bytes,
				       .blob = (uintptr_t)blob,
				       .blob_bytes = i ? sizeof(struct modpools_blob) : bytes,
				       .fd = pages->fd,
				       .node = pages->node};
	int r;

	((struct modpools_blob *)(void *)blob)->index = i;
	snprintf(adopt.name, sizeof adopt.name, NAME_PREFIX "%.40s", model->manifest->name);
	r = command(m, MOE_KMOD_ADOPT, &adopt);
	if (r == 0)
		gift->pools[gift->n++] = (struct modpools_held){.id = adopt.id, .epoch = adopt.epoch};
	return r;
}

static const char *why_not(const struct resident *model)
{
	if (model->frames)
		return "it is tiered: what its frames hold changes";
	for (uint32_t i = 0; i < model->n_pools; i++)
		if (model->pools[i].rung > PAGES_2M)
			return "its memory is not hugetlb pages (--pages 2m, vm.nr_hugepages)";
	return NULL;
}

static void take_back(const struct modpools *m, struct modpools_gift *gift)
{
	while (gift->n)
		release(m, &gift->pools[--gift->n]);
}

void modpools_give(const struct modpools *m, const struct resident *model, struct modpools_gift *ret)
{
	_cleanup_free_ uint8_t *blob = NULL;
	uint32_t bytes = 0;

	*ret = (struct modpools_gift){.n = 0};
	if (m->state != MODPOOLS_USED)
		return;
	ret->why = why_not(model);
	if (ret->why) {
		ret->code = -EMEDIUMTYPE;
		return;
	}
	blob = make_blob(model, &bytes);
	if (!blob)
		ret->code = -ENOMEM;
	for (uint32_t i = 0; i < model->n_pools && ret->code == 0; i++)
		ret->code = give_pool(m, model, i, blob, bytes, ret);
	if (ret->code < 0)
		take_back(m, ret);
}

int modpools_accept(struct modpools *m, struct modpools_gift *gift, const char *name, bool wanted)
{
	int r = gift->code;

	if (wanted && r == 0)
		r = hold(m, gift->pools, gift->n);
	if (wanted && gift->why)
		log_warning("model %s does not lie with the kernel module: %s", name, gift->why);
	else if (wanted && r < 0)
		log_warning("model %s does not lie with the kernel module, which refused it: %s; it is served all the "
			    "same",
			    name, strerror(-r));
	if (!wanted || r < 0)
		take_back(m, gift);
	*gift = (struct modpools_gift){.n = 0};
	return r;
}

/* -- getting back ------------------------------------------------------------------------------------------------- */

/* One model of the module. */
struct found {
	uint64_t epoch;
	struct store_left left;
	uint8_t *blob; /* of pool 0 */
	uint32_t blob_bytes, n;
	uint8_t digest[MOE_DIGEST_BYTES];
};

static void found_free(struct found *f)
{
	close_fd(f->left.manifest_fd);
	for (uint32_t i = 0; i < MOE_POOLS_MAX; i++)
		close_fd(f->left.pools[i]);
	free(f->blob);
}

static int sort_in(struct found *f, const struct modpools_blob *head, int fd, struct moe_error *err)
{
	if (head->magic != MODPOOLS_MAGIC)
		return moe_error_set(err, -EBADMSG, "what lies with a pool is not moe-expertd's");
	if (head->version != MODPOOLS_VERSION)
		return moe_error_set(err, -EPROTO, "what lies with a pool has version %u, %u expected", head->version,
				     MODPOOLS_VERSION);
	if (!head->n_pools || head->n_pools > MOE_POOLS_MAX || head->index >= head->n_pools ||
	    f->left.pools[head->index] >= 0)
		return moe_error_set(err, -EBADMSG, "pool %u of %u is there twice, or cannot be", head->index,
				     head->n_pools);
	if (f->n && (memcmp(f->digest, head->digest, sizeof f->digest) != 0 || f->left.n_pools != head->n_pools))
		return moe_error_set(err, -EBADMSG, "its pools are of several models: digests differ");
	memcpy(f->digest, head->digest, sizeof f->digest);
	f->left.n_pools = head->n_pools;
	f->left.pools[head->index] = fd;
	f->n++;
	return 0;
}

static int take_pool(struct modpools *m, struct found *f, const struct moe_kmod_pool *pool, struct moe_error *err)
{
	_cleanup_free_ uint8_t *blob = malloc(MAX(pool->blob_bytes, (uint32_t)sizeof(struct modpools_blob)));
	struct moe_kmod_take take = {.id = pool->id, .blob = (uintptr_t)blob, .blob_bytes = pool->blob_bytes};
	struct modpools_blob head;
	int r;

	if (!blob)
		return moe_error_sys(err, -ENOMEM, "pool %" PRIu64, (uint64_t)pool->id);
	if (pool->blob_bytes < sizeof head || pool->blob_bytes > MOE_KMOD_BLOB_MAX)
		return moe_error_set(err, -EBADMSG, "%u bytes lie with a pool, %zu or more expected", pool->blob_bytes,
				     sizeof head);
	r = command(m, MOE_KMOD_TAKE, &take);
	if (r < 0)
		return moe_error_sys(err, r, "pool %" PRIu64 " cannot be taken", (uint64_t)pool->id);
	memcpy(&head, blob, sizeof head);
	r = sort_in(f, &head, take.fd, err);
	if (r < 0) {
		close_fd(take.fd);
	} else if (head.index == 0) {
		f->blob = steal_ptr(blob);
		f->blob_bytes = pool->blob_bytes;
	}
	return r;
}

static int take_pools(struct modpools *m, struct found *f, struct moe_error *err)
{
	struct moe_kmod_pool pool = {0};
	int r = 0;

	while (r >= 0 && (r = next_pool(m, &pool)) > 0)
		if (pool.epoch == f->epoch)
			r = take_pool(m, f, &pool, err);
	if (r == 0 && f->n == 0)
		r = moe_error_set(err, -ENOENT, "its pools were there a moment ago, and are gone");
	else if (r == 0 && f->n != f->left.n_pools)
		r = moe_error_set(err, -EBADMSG, "%u of its %u pools are there", f->n, f->left.n_pools);
	return r;
}

static bool same_file(int a, int b)
{
	struct stat one, other;

	return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/* What the keeper has brought already. */
static int compare(const struct found *f, const struct resident *model, struct moe_error *err)
{
	bool same = f->n == model->n_pools;

	for (uint32_t i = 0; i < model->n_pools && same; i++)
		same = same_file(f->left.pools[i], model->pools[i].fd);
	return same ? 0 : moe_error_set(err, -EEXIST, "the keeper has another model of this epoch");
}

static int open_blob(struct found *f, int *ret_books_fd, struct moe_error *err)
{
	struct modpools_blob head;
	const uint64_t rest = f->blob_bytes - sizeof head;
	const uint8_t *manifest = f->blob + sizeof head;

	memcpy(&head, f->blob, sizeof head);
	if (head.manifest_bytes < sizeof(struct moe_manifest) || head.manifest_bytes > rest ||
	    head.books_bytes != rest - head.manifest_bytes || head.books_bytes < sizeof(struct model_books))
		return moe_error_set(err, -EBADMSG, "%" PRIu64 " bytes of manifest and books found, other sizes told",
				     rest);
	if (memcmp(((const struct moe_manifest *)(const void *)manifest)->digest, f->digest, sizeof f->digest) != 0)
		return moe_error_set(err, -EBADMSG, "the manifest has another digest than the pools");
	if (((const struct moe_manifest *)(const void *)manifest)->epoch != f->epoch)
		return moe_error_set(err, -EBADMSG, "the manifest has another epoch than the pools");
	f->left.manifest_fd = memfd_new_sealed("moe-manifest", manifest, head.manifest_bytes, err);
	if (f->left.manifest_fd < 0)
		return f->left.manifest_fd;
	*ret_books_fd = memfd_new("moe-books", head.books_bytes, err);
	if (*ret_books_fd >= 0 &&
	    pwrite(*ret_books_fd, manifest + head.manifest_bytes, head.books_bytes, 0) != (ssize_t)head.books_bytes)
		return moe_error_sys(err, -EIO, "books of a model");
	return MIN(*ret_books_fd, 0);
}

static int take_model(struct modpools *m, uint64_t epoch, struct registry *registry, struct loop *loop,
		      const struct host *host, struct moe_error *err)
{
	_cleanup_(found_free) struct found f = {.epoch = epoch, .left.manifest_fd = -1};
	const struct entry *entry = registry_by_epoch(registry, epoch);
	_cleanup_close_ int books_fd = -1;
	int r;

	for (uint32_t i = 0; i < MOE_POOLS_MAX; i++)
		f.left.pools[i] = -1;
	r = take_pools(m, &f, err);
	if (r == 0 && entry)
		return compare(&f, entry->model, err);
	if (r == 0)
		r = open_blob(&f, &books_fd, err);
	if (r == 0)
		r = estate_adopt_model(registry, &f.left, steal_fd(&books_fd), epoch, loop, host, err);
	m->taken += r == 0;
	return r;
}

static void unwant(struct modpools *m, uint64_t epoch)
{
	for (uint32_t i = 0; i < m->n_held; i++)
		m->held[i].unwanted |= m->held[i].epoch == epoch;
}

static int list_pools(struct modpools *m, uint64_t *next_epoch, struct moe_error *err)
{
	struct moe_kmod_pool pool = {0};
	int r = 0;

	while (r >= 0 && (r = next_pool(m, &pool)) > 0) {
		if (pool.epoch < UINT64_MAX)
			*next_epoch = MAX(*next_epoch, (uint64_t)pool.epoch + 1);
		r = hold(m, &(struct modpools_held){.id = pool.id, .epoch = pool.epoch}, 1);
	}
	return r < 0 ? moe_error_sys(err, r, "the kernel module's pools") : 0;
}

int modpools_take(struct modpools *m, struct registry *registry, struct loop *loop, const struct host *host,
		  uint64_t *next_epoch, struct moe_error *err)
{
	int r = m->state == MODPOOLS_USED ? list_pools(m, next_epoch, err) : 0;

	for (uint32_t i = 0; i < m->n_held && r == 0; i++) {
		const uint64_t epoch = m->held[i].epoch;
		bool seen = false;

		for (uint32_t k = 0; k < i; k++)
			seen |= m->held[k].epoch == epoch;
		r = seen ? 0 : take_model(m, epoch, registry, loop, host, err);
		if (estate_lacks_means(r))
			return r;
		if (r < 0) {
			event_log(EVENT_MODEL_LOST, FACTS(.reason = err->text),
				  "a model of epoch %" PRIu64
				  " that the kernel module has cannot be used, it is released and must be loaded "
				  "again: %s",
				  epoch, err->text);
			unwant(m, epoch);
			r = 0;
		}
	}
	return r;
}

void modpools_close(struct modpools *m, bool releases)
{
	while (releases && m->n_held)
		release_at(m, m->n_held - 1);
	if (m->loop)
		loop_remove(m->loop, &m->source);
	m->loop = NULL;
	if (m->source.fd >= 0)
		m->source.fd = close_fd(m->source.fd);
	free(m->held);
	m->held = NULL;
	m->n_held = m->room = 0;
}
