/* SPDX-License-Identifier: MIT */
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fdmsg.h"
#include "base/memfd.h"
#include "base/util.h"
#include "client.h"
#include "engine.h"
#include "layout.h"
#include "manifest/manifest-check.h"
#include "policy/policy.h"
#include "registrar.h"
#include "warm.h"
#include "wire.h"

#define FDS_BEFORE_POOLS 4 /* manifest, client region, daemon region, doorbell */
#define DEFAULT_ENTRIES 256
#define DEFAULT_TOKENS 512
#define STEPS_MAX 64
#define DEFAULT_STEPS 2
#define DEFAULT_TOPK_SEEN 2
#define DEFAULT_UPDATES 2
#define DEFAULT_AGREE_MS 10000
#define PATIENCE_MS_MIN 10000u
#define PATIENCE_DEVICE_MS 60000u
#define SIZE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static int set_word(char *to, size_t size, const char *from, const char *otherwise, const char *what,
		    struct moe_error *err)
{
	const char *word = from ? from : otherwise;

	if (strlen(word) >= size)
		return moe_error_set(err, -EINVAL, "moe_attach: %s '%.40s...' is too long", what, word);
	memcpy(to, word, strlen(word) + 1);
	return 0;
}

/* How long the daemon may be silent while a session begins, which nobody's step waits for. */
static uint32_t patience_ms(const struct moe_session *s)
{
	return MAX(s->params.watchdog_ms ? s->params.watchdog_ms : ENGINE_WATCHDOG_MS, PATIENCE_MS_MIN);
}

static int too_silent(uint32_t ms, struct moe_error *err)
{
	return moe_error_set(err, -ETIME,
			     "moe_attach: no word from moe-expertd for %u ms: is it stopped, or does it hang? See "
			     "moectl status",
			     ms);
}

static int connect_session(struct moe_session *s, const char *path, struct moe_msg_hello *ret, struct moe_error *err)
{
	const struct moe_patience patience = {.silent_ms = patience_ms(s)};

	s->pid = getpid();
	s->socket = wire_connect(path, &patience, ret, err);
	return s->socket == -ETIMEDOUT ? too_silent(patience.silent_ms, err) : MIN(s->socket, 0);
}

int session_answer(struct moe_session *s, enum moe_msg_type type, void *reply, size_t bytes, int *fds, int n_fds,
		   size_t *ret_n_fds, struct moe_error *err)
{
	/* With a GPU the daemon begins to work with that first. */
	const uint32_t least = type == MOE_MSG_DEVICE ? PATIENCE_DEVICE_MS : 0;
	const struct moe_patience patience = {.silent_ms = MAX(patience_ms(s), least)};
	const struct wire_wait wait = {.patience = &patience};
	const int r = wire_recv(s->socket, type, reply, bytes, fds, n_fds, ret_n_fds, &wait, err);

	return r == -ETIMEDOUT ? too_silent(patience.silent_ms, err) : r;
}

/* Copies what the caller's version of the struct has, then fills in the defaults. */
static int take_params(struct moe_session *s, const struct moe_attach_params *params, struct moe_error *err)
{
	struct moe_attach_params *p = &s->params;
	int r;

	if (params->size < offsetof(struct moe_attach_params, dual_batch) || params->size > sizeof *p)
		return moe_error_set(err, -EINVAL, "moe_attach: params.size %zu found, sizeof (%zu) expected",
				     params->size, sizeof *p);
	memcpy(p, params, params->size);
	p->size = sizeof *p;
	p->tp_size = p->tp_size ? p->tp_size : 1;
	p->entries = p->entries ? p->entries : DEFAULT_ENTRIES;
	p->max_tokens = p->max_tokens ? p->max_tokens : DEFAULT_TOKENS;
	p->max_steps = p->max_steps ? p->max_steps : DEFAULT_STEPS;
	p->cache_topk = p->cache_topk ? p->cache_topk : DEFAULT_TOPK_SEEN;
	p->update_expert_num = p->update_expert_num ? p->update_expert_num : DEFAULT_UPDATES;
	p->register_wait_ms = p->register_wait_ms ? p->register_wait_ms : REGISTRAR_WAIT_MS;
	p->agree_ms = p->agree_ms ? p->agree_ms : DEFAULT_AGREE_MS;
	if (p->tp_rank >= p->tp_size)
		return moe_error_set(err, -EINVAL, "moe_attach: tp_rank %u found, 0 to %u expected", p->tp_rank,
				     p->tp_size - 1);
	if (p->max_steps > STEPS_MAX)
		return moe_error_set(err, -EINVAL, "moe_attach: max_steps %u found, at most %d", p->max_steps,
				     STEPS_MAX);
	if (p->max_tokens > MOE_TOKENS_MAX)
		return moe_error_set(err, -EINVAL, "moe_attach: max_tokens %u found, at most %u", p->max_tokens,
				     MOE_TOKENS_MAX);
	r = set_word(s->policy, sizeof s->policy, p->policy, POLICY_DEFAULT, "policy", err);
	if (r == 0)
		r = set_word(s->device, sizeof s->device, p->device, "host", "device", err);
	p->policy = s->policy;
	p->device = s->device;
	p->model = NULL; /* the caller's memory; info.model has the name */
	p->digest = NULL;
	p->transport = NULL; /* choose_transport has done with it */
	return r;
}

/* The caller's word, or the environment's; NULL: none. */
static const char *transport_word(const char *asked)
{
	return asked ? asked : getenv("MOE_TRANSPORT");
}

static bool may_choose(const char *word)
{
	return word && strcmp(word, "auto") == 0;
}

/* Opens the device for requests through the kernel module, if that is wanted, or may be and can. */
static int choose_transport(struct moe_session *s, const char *asked, struct moe_error *err)
{
	const char *word = transport_word(asked);
	const bool may = may_choose(word), plain = word && strcmp(word, "kmod-ioctl") == 0;
	int r = 0;

	if (!word || !*word || strcmp(word, "ring") == 0)
		return 0;
	if (!may && !plain && strcmp(word, "kmod") != 0)
		return moe_error_set(err, -EINVAL,
				     "moe_attach: transport '%.40s' found, ring, kmod, kmod-ioctl or auto expected",
				     word);
	if (!(s->features & MOE_FEATURE_MODULE))
		r = moe_error_set(
			err, -EOPNOTSUPP,
			"transport kmod: this moe-expertd serves no queue of the kernel module; moectl status "
			"says why; or use the transport ring");
	if (r == 0)
		r = queue_module_open(&s->module, plain, err);
	return may ? 0 : r;
}

static int ask(struct moe_session *s, const struct moe_attach_params *params, struct moe_msg_attached *ret, int *fds,
	       size_t *ret_n_fds, struct moe_error *err)
{
	const struct moe_attach_params *p = &s->params;
	struct moe_msg_attach attach = {
		.layout = MOE_LAYOUT_VERSION,
		.tp_rank = p->tp_rank,
		.tp_size = p->tp_size,
		.dp_rank = p->dp_rank,
		.ep_rank = p->ep_rank,
		.entries = p->entries,
		.group = p->group,
		.device = s->features & MOE_FEATURE_BUDGET ? p->device_id : 0, /* or each session has its own budget */
		.dp_size = p->dp_size,
		.agree_ms = p->dp_size ? p->agree_ms : 0,
		.client = s->module.fd >= 0 ? s->module.client : 0,
	};
	int r;

	if (p->dp_size && !(s->features & MOE_FEATURE_AGREE))
		return moe_error_set(err, -EOPNOTSUPP,
				     "moe_attach: dp_size %u: this moe-expertd knows no agreement on phases; start a "
				     "newer one",
				     p->dp_size);
	if (params->digest)
		memcpy(attach.digest, params->digest, sizeof attach.digest);
	if (params->model) {
		r = set_word(attach.name, sizeof attach.name, params->model, "", "model name", err);
		if (r < 0)
			return r;
	}
	wire_begin(&attach, sizeof attach, MOE_MSG_ATTACH, 0);
	r = wire_send(s->socket, &attach, NULL, err);
	if (r < 0)
		return r;
	return session_answer(s, MOE_MSG_ATTACH, ret, sizeof *ret, fds, -1, ret_n_fds, err);
}

/* By the way that was chosen; where that was left to this library, and the daemon refuses the module, by the ring. */
static int ask_either(struct moe_session *s, const struct moe_attach_params *params, const char *asked,
		      struct moe_msg_attached *ret, int *fds, size_t *ret_n_fds, struct moe_error *err)
{
	const int r = ask(s, params, ret, fds, ret_n_fds, err);

	/* After -ETIME the answer may still come, and would be taken for that of another question. */
	if (r >= 0 || r == -EPIPE || r == -ETIME || s->module.fd < 0 || !may_choose(transport_word(asked)))
		return r;
	queue_module_close(&s->module);
	return ask(s, params, ret, fds, ret_n_fds, err);
}

static int map_manifest(struct moe_session *s, int fd, uint64_t bytes, struct moe_error *err)
{
	void *map;
	uint64_t have;
	int r = memfd_verify(fd, sizeof(struct moe_manifest), SIZE_SEALS | F_SEAL_WRITE, &have, "manifest", err);

	if (r == 0 && have != bytes)
		r = moe_error_set(err, -EPROTO, "manifest: %llu bytes found, %llu announced", (unsigned long long)have,
				  (unsigned long long)bytes);
	if (r == 0)
		r = memfd_map(&map, fd, bytes, PROT_READ, "manifest", err);
	if (r < 0)
		return r;
	s->manifest = map;
	s->manifest_bytes = bytes;
	r = manifest_check(s->manifest, bytes, err);
	if (r < 0)
		return r;
	s->layouts = (const struct moe_layout *)((const uint8_t *)map + s->manifest->layouts_offset);
	s->records = (const struct moe_record *)((const uint8_t *)map + s->manifest->records_offset);
	r = layout_check(s->manifest, s->layouts, s->params.tp_size, err);
	if (r < 0)
		return r;
	return layout_slices(&s->slices, s->layouts, s->manifest->n_layouts, s->params.tp_rank, s->params.tp_size, err);
}

_Static_assert(sizeof(struct histogram) == sizeof(struct moe_histogram) && HISTOGRAM_BITS == 3 && HISTOGRAM_TOP == 40,
	       "the buckets are those of the law of the waits");

static int find_waits(struct moe_session *s, const struct moe_daemon_page *page, struct moe_error *err)
{
	const uint64_t bytes = (uint64_t)s->manifest->n_layers * sizeof *s->waits;

	if (page->waits_offset == 0)
		return 0;
	if (page->waits_offset % sizeof(uint64_t) || !checked_range(page->waits_offset, bytes, s->client_bytes))
		return moe_error_set(err, -EPROTO, "daemon region: %u histograms at %llu of %llu bytes",
				     s->manifest->n_layers, (unsigned long long)page->waits_offset,
				     (unsigned long long)s->client_bytes);
	s->waits = (struct histogram *)((uint8_t *)s->client_region + page->waits_offset);
	return 0;
}

/* Where heat is counted and told, if this daemon knows of it. */
static int find_heat(struct moe_session *s, struct moe_error *err)
{
	const struct moe_daemon_page *page = s->daemon_region;
	const uint64_t bytes = (uint64_t)s->manifest->n_moe_layers * s->manifest->n_experts * sizeof(uint32_t);

	if (!page->heat_offset)
		return 0;
	if (page->heat_offset % sizeof(uint32_t) || page->hottest_offset % sizeof(uint32_t) ||
	    !checked_range(page->heat_offset, bytes, s->client_bytes) ||
	    !checked_range(page->hottest_offset, bytes, s->daemon_bytes))
		return moe_error_set(err, -EPROTO, "daemon region: heat of %llu bytes at %llu and %llu has no room",
				     (unsigned long long)bytes, (unsigned long long)page->heat_offset,
				     (unsigned long long)page->hottest_offset);
	s->heat = (uint32_t *)((uint8_t *)s->client_region + page->heat_offset);
	s->hottest = (const uint32_t *)((const uint8_t *)s->daemon_region + page->hottest_offset);
	return 0;
}

static int map_regions(struct moe_session *s, const struct moe_msg_attached *a, struct moe_error *err)
{
	const struct moe_daemon_page *page;
	void *client, *daemon;
	uint64_t stats_bytes;
	int r = memfd_verify(s->client_fd, a->client_bytes, SIZE_SEALS, NULL, "client region", err);

	if (r == 0)
		r = memfd_verify(s->daemon_fd, a->daemon_bytes, SIZE_SEALS, NULL, "daemon region", err);
	if (r == 0)
		r = memfd_map(&client, s->client_fd, a->client_bytes, PROT_READ | PROT_WRITE, "client region", err);
	if (r < 0)
		return r;
	s->client_region = client;
	s->client_bytes = a->client_bytes;
	r = memfd_map(&daemon, s->daemon_fd, a->daemon_bytes, PROT_READ, "daemon region", err);
	if (r < 0)
		return r;
	s->daemon_region = page = daemon;
	s->daemon_bytes = a->daemon_bytes;
	stats_bytes = (uint64_t)s->manifest->n_layers * sizeof(struct moe_layer_stats);
	if (a->daemon_bytes < sizeof *page || page->magic != MOE_RING_MAGIC || page->sq_entries != s->params.entries ||
	    page->cq_entries != s->params.entries ||
	    !checked_range(page->sqe_offset, (uint64_t)page->sq_entries * sizeof(struct moe_sqe), s->client_bytes) ||
	    !checked_range(page->stats_offset, stats_bytes, s->client_bytes) ||
	    !checked_range(page->cqe_offset, (uint64_t)page->cq_entries * sizeof(struct moe_cqe), s->daemon_bytes))
		return moe_error_set(err, -EPROTO, "daemon region: not a ring of %u entries", s->params.entries);
	s->stats = (struct moe_layer_stats *)((uint8_t *)s->client_region + page->stats_offset);
	r = find_waits(s, page, err);
	if (r == 0 && s->features & MOE_FEATURE_HEAT)
		r = find_heat(s, err);
	if (r < 0)
		return r;
	return s->features & MOE_FEATURE_TRACE ? tap_init(&s->tap, s->client_region, s->client_bytes, page, err) : 0;
}

static int take_pools(struct moe_session *s, int *fds, struct moe_error *err)
{
	const struct moe_manifest *m = s->manifest;

	for (uint32_t i = 0; i < m->n_pools; i++) {
		const int r = memfd_verify(fds[i], m->pools[i].bytes, SIZE_SEALS, NULL, "pool file", err);

		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i < m->n_pools; i++)
		s->pools[i] = (struct session_pool){.fd = steal_fd(&fds[i]), .bytes = m->pools[i].bytes};
	s->n_pools = m->n_pools;
	return 0;
}

static void fill_info(struct moe_session *s, const struct moe_msg_attached *a)
{
	const struct moe_manifest *m = s->manifest;
	struct moe_session_info *info = &s->info;

	*info = (struct moe_session_info){
		.session = a->session,
		.epoch = m->epoch,
		.n_layers = m->n_layers,
		.n_moe_layers = m->n_moe_layers,
		.n_experts = m->n_experts,
		.topk = m->topk,
		.hidden = m->hidden,
		.inter = m->inter,
		.cache_slots = MIN(s->params.cache_expert_num, m->n_experts),
		.cpu_threads = a->cpu_threads,
		.record_bytes = m->record_bytes * m->n_pools,
		.layer_index = (const int32_t *)(m + 1),
	};
	memcpy(info->model, m->name, sizeof info->model);
	memcpy(info->digest, m->digest, sizeof info->digest);
	for (uint32_t i = 0; i < m->n_layouts; i++) {
		info->slice_inter = MAX(info->slice_inter, s->slices[i].inter);
		info->slot_bytes = MAX(info->slot_bytes, s->slices[i].bytes);
	}
	if (info->cache_slots > 0)
		info->miss_slots = s->params.miss_expert_num
					   ? MIN(s->params.miss_expert_num, m->n_experts - info->cache_slots)
					   : m->n_experts - info->cache_slots;
}

/* Everything that arrived with the reply. The fds that are not taken over are closed by the caller. */
static int take_reply(struct moe_session *s, const struct moe_msg_attached *a, int *fds, size_t n_fds,
		      struct moe_error *err)
{
	int r;

	if (a->n_pools > MOE_POOLS_MAX || n_fds != FDS_BEFORE_POOLS + a->n_pools)
		return moe_error_set(err, -EPROTO, "attach: %zu fds found, %u expected", n_fds,
				     FDS_BEFORE_POOLS + a->n_pools);
	r = map_manifest(s, fds[0], a->manifest_bytes, err);
	if (r < 0)
		return r;
	if (s->manifest->n_pools != a->n_pools)
		return moe_error_set(err, -EPROTO, "attach: %u pool files found, %u in the manifest", a->n_pools,
				     s->manifest->n_pools);
	s->client_fd = steal_fd(&fds[1]);
	s->daemon_fd = steal_fd(&fds[2]);
	s->doorbell = steal_fd(&fds[3]);
	r = map_regions(s, a, err);
	if (r == 0)
		r = take_pools(s, fds + FDS_BEFORE_POOLS, err);
	if (r < 0)
		return r;
	fill_info(s, a);
	r = queue_init(&s->queue, s->client_region, s->daemon_region, s->doorbell, s->socket);
	if (s->module.fd >= 0) {
		s->module.queue = (uint32_t)a->queue;
		s->queue.module = &s->module;
	}
	return r;
}

static struct moe_session *session_free(struct moe_session *s)
{
	if (!s)
		return NULL;
	wire_close(s->socket, s->pid);
	for (uint32_t i = 0; i < s->n_pools; i++) {
		if (s->pools[i].map)
			munmap((void *)s->pools[i].map, s->pools[i].bytes);
		close_fd(s->pools[i].fd);
	}
	if (s->data)
		munmap(s->data, s->data_bytes);
	if (s->daemon_region)
		munmap((void *)s->daemon_region, s->daemon_bytes);
	if (s->client_region)
		munmap(s->client_region, s->client_bytes);
	if (s->manifest)
		munmap((void *)s->manifest, s->manifest_bytes);
	close_fd(s->client_fd);
	close_fd(s->daemon_fd);
	close_fd(s->doorbell);
	queue_module_close(&s->module);
	free(s->slices);
	free(s);
	return NULL;
}

/* What the caller's version of the struct says of it. */
static const char *word_of(const struct moe_attach_params *params)
{
	const size_t end = offsetof(struct moe_attach_params, transport) + sizeof params->transport;

	return params->size >= end ? params->transport : NULL;
}

/* Of a session that begins, with as much patience as for the messages before. */
static int first_nop(struct moe_session *s, struct moe_error *err)
{
	const uint64_t patience_ns = s->queue.patience_ns;
	int r;

	s->queue.patience_ns = (uint64_t)patience_ms(s) * 1000000;
	r = moe_nop(s, err);
	s->queue.patience_ns = patience_ns;
	return r == -ETIME ? too_silent(patience_ms(s), err) : r;
}

static int attach_once(struct moe_client *client, struct moe_session **ret, const struct moe_attach_params *params,
		       struct moe_error *err)
{
	struct moe_session *s = calloc(1, sizeof *s);
	struct moe_msg_attached attached;
	struct moe_msg_hello hello;
	int fds[FDMSG_FDS_MAX], r;
	size_t n_fds = 0;

	if (!s)
		return moe_error_sys(err, -ENOMEM, "cannot attach");
	s->socket = s->client_fd = s->daemon_fd = s->doorbell = s->module.fd = -1;
	r = take_params(s, params, err);
	if (r == 0)
		r = connect_session(s, client->path, &hello, err);
	if (r == 0) {
		s->features = hello.features;
		r = choose_transport(s, word_of(params), err);
	}
	if (r == 0)
		r = ask_either(s, params, word_of(params), &attached, fds, &n_fds, err);
	if (r == 0)
		r = take_reply(s, &attached, fds, n_fds, err);
	fdmsg_close_fds(fds, n_fds);
	if (r < 0) {
		session_free(s);
		return r;
	}
	r = engine_new(&s->engine, s, err);
	/* A daemon that dies while it answers a message leaves a session that its successor gives up, whether or not
	 * the answer was heard. One whose ring has answered after all messages goes on from now on. */
	if (r == 0)
		r = first_nop(s, err);
	if (r == 0 && s->params.warm)
		r = warm_caches(s, err);
	if (r < 0) {
		moe_detach(s);
		return r;
	}
	*ret = s;
	return 0;
}

int moe_attach(struct moe_client *client, struct moe_session **ret, const struct moe_attach_params *params,
	       struct moe_error *err)
{
	int r, tries = 0;

	do
		r = attach_once(client, ret, params, err);
	while (r == -EPIPE && ++tries < WIRE_TRIES);
	return r;
}

struct moe_session *moe_detach(struct moe_session *s)
{
	if (s) {
		s->engine = engine_free(s->engine);
		queue_fini(&s->queue);
		session_free(s);
	}
	return NULL;
}

void moe_session_info(const struct moe_session *session, struct moe_session_info *ret)
{
	*ret = session->info;
	ret->device = engine_describe(session->engine);
}

int moe_slot_layout(const struct moe_session *session, uint32_t layer, struct moe_slot_layout *ret,
		    struct moe_error *err)
{
	const int row = session_row(session, layer, err);

	if (row < 0)
		return row;
	layout_describe(ret, session_layout(session, (uint32_t)row), session_slice(session, (uint32_t)row));
	return 0;
}

int moe_record_digest(const struct moe_session *session, uint32_t layer, uint32_t expert, uint8_t ret[16],
		      struct moe_error *err)
{
	const int row = session_row(session, layer, err);

	if (row < 0)
		return row;
	if (expert >= session->info.n_experts)
		return moe_error_set(err, -EINVAL, "expert %u: model %s has experts 0 to %u", expert,
				     session->info.model, session->info.n_experts - 1);
	memcpy(ret, session->records[(uint64_t)row * session->info.n_experts + expert].digest, MOE_DIGEST_BYTES);
	return 0;
}

int session_row(const struct moe_session *session, uint32_t layer, struct moe_error *err)
{
	if (layer >= session->info.n_layers)
		return moe_error_set(err, -EINVAL, "layer %u: model %s has layers 0 to %u", layer, session->info.model,
				     session->info.n_layers - 1);
	if (session->info.layer_index[layer] < 0)
		return moe_error_set(err, -EINVAL, "layer %u of model %s is dense: it has no experts", layer,
				     session->info.model);
	return session->info.layer_index[layer];
}
