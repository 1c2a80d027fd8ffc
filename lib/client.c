/* SPDX-License-Identifier: MIT */
/* client - the public calls that need a connection but no session. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fdmsg.h"
#include "base/memfd.h"
#include "client.h"
#include "moe-expert.h"
#include "wire.h"

_Static_assert(__builtin_strcmp(MOE_EXPERT_VERSION, MOE_VERSION) == 0, "the header's version is the build's");

int moe_open_patient(struct moe_client **ret, const char *socket, const struct moe_patience *patience,
		     struct moe_error *err)
{
	_cleanup_free_ struct moe_client *client = NULL;

	if (patience && patience->size != sizeof *patience)
		return moe_error_set(err, -EINVAL, "moe_open_patient: patience.size %zu found, sizeof (%zu) expected",
				     patience->size, sizeof *patience);
	client = calloc(1, sizeof *client);
	if (!client)
		return moe_error_sys(err, -ENOMEM, "cannot open a client");
	if (!socket)
		socket = getenv("MOE_EXPERTD_SOCKET");
	client->path = strdup(socket && *socket ? socket : MOE_SOCKET_DEFAULT);
	if (!client->path)
		return moe_error_sys(err, -ENOMEM, "cannot open a client");
	if (patience)
		client->patience = *patience;
	client->socket = wire_connect(client->path, &client->patience, &client->hello, err);
	if (client->socket < 0) {
		int r = client->socket;

		free(client->path);
		return r;
	}
	client->pid = getpid();
	pthread_mutex_init(&client->lock, NULL);
	*ret = steal_ptr(client);
	return 0;
}

int moe_open(struct moe_client **ret, const char *socket, struct moe_error *err)
{
	return moe_open_patient(ret, socket, NULL, err);
}

struct moe_client *moe_close(struct moe_client *client)
{
	if (client) {
		pthread_mutex_destroy(&client->lock);
		wire_close(client->socket, client->pid);
		free(client->path);
		free(client);
	}
	return NULL;
}

static int read_document(int fd, uint64_t bytes, char **ret, struct moe_error *err)
{
	_cleanup_free_ char *text = NULL;
	uint64_t have;
	void *map;
	int r = memfd_verify(fd, bytes, F_SEAL_SHRINK, &have, "document", err);

	if (r < 0)
		return r;
	text = malloc(bytes + 1);
	if (!text)
		return moe_error_sys(err, -ENOMEM, "document of %llu bytes", (unsigned long long)bytes);
	if (bytes > 0) {
		r = memfd_map(&map, fd, bytes, PROT_READ, "document", err);
		if (r < 0)
			return r;
		memcpy(text, map, bytes);
		munmap(map, bytes);
	}
	text[bytes] = '\0';
	if (memchr(text, 0, bytes))
		return moe_error_set(err, -EPIPE, "document: the daemon has closed this connection, and taken it back");
	*ret = steal_ptr(text);
	return 0;
}

/* Under the lock: a connection, again where the last one was lost, or is a parent's. */
static int be_connected(struct moe_client *client, struct moe_error *err)
{
	if (client->pid != getpid())
		client->socket = close_fd(client->socket);
	if (client->socket < 0)
		client->socket = wire_connect(client->path, &client->patience, &client->hello, err);
	client->pid = getpid();
	return client->socket < 0 ? client->socket : 0;
}

/* Under the lock, with what an exchange has returned. An answer that comes too late is not to be the next one's. */
static int note_loss(struct moe_client *client, int r)
{
	if (r == -EPIPE || r == -ETIMEDOUT) {
		wire_close(client->socket, client->pid); /* a child may have it: the connection ends all the same */
		client->socket = -1;
	}
	return r;
}

/* Under the lock: sends a message. Where the connection was lost since it was last used (a daemon that was started
 * again), nobody has received it, and it is sent once more. `feature`, which may be 0, is one that the daemon must
 * have: else it `does_not`. */
static int send_message(struct moe_client *client, const void *message, const int *fd, uint64_t feature,
			const char *does_not, struct moe_error *err)
{
	int r, tries = 0;

	do {
		r = be_connected(client, err);
		if (r == 0 && (client->hello.features & feature) != feature)
			return moe_error_set(err, -EOPNOTSUPP, "%s: this daemon %s: it is older than the library",
					     client->path, does_not);
		if (r == 0)
			r = wire_send(client->socket, message, fd, err);
	} while (note_loss(client, r) == -EPIPE && ++tries < 2);
	return r;
}

/* Under the lock: its answer, and its progress if `on_progress` is not NULL. A document's descriptor goes to *ret_fd,
 * which is NULL where none is expected. */
static int take_reply(struct moe_client *client, enum moe_msg_type type, void *reply, size_t bytes, int *ret_fd,
		      void (*on_progress)(const struct moe_msg_progress *, void *), void *userdata,
		      struct moe_error *err)
{
	const struct wire_wait wait = {&client->patience, on_progress, userdata};

	return wire_recv(client->socket, type, reply, bytes, ret_fd, ret_fd ? 1 : 0, NULL, &wait, err);
}

/* A message and its answer. */
static int call(struct moe_client *client, const void *message, enum moe_msg_type type, void *reply, size_t bytes,
		uint64_t feature, const char *does_not, struct moe_error *err)
{
	int r = send_message(client, message, NULL, feature, does_not, err);

	if (r == 0)
		r = take_reply(client, type, reply, bytes, NULL, NULL, NULL, err);
	return note_loss(client, r);
}

/* It is read before anybody asks for the next one: with that the daemon takes its pages back. */
static int query_once(struct moe_client *client, const struct moe_msg_query *query, char **ret, struct moe_error *err)
{
	_cleanup_close_ int fd = -1;
	struct moe_msg_document reply;
	int r = be_connected(client, err);

	if (r == 0)
		r = wire_send(client->socket, query, NULL, err);
	if (r == 0)
		r = take_reply(client, MOE_MSG_QUERY, &reply, sizeof reply, &fd, NULL, NULL, err);
	if (r == 0)
		r = read_document(fd, reply.bytes, ret, err);
	return note_loss(client, r);
}

int moe_query(struct moe_client *client, enum moe_document what, char **ret, struct moe_error *err)
{
	struct moe_msg_query query = {.what = what};
	int r, tries = 0;

	wire_begin(&query, sizeof query, MOE_MSG_QUERY, 0);
	pthread_mutex_lock(&client->lock);
	do
		r = query_once(client, &query, ret, err);
	while (r == -EPIPE && ++tries < WIRE_TRIES);
	pthread_mutex_unlock(&client->lock);
	return r;
}

struct progress_call {
	void (*call)(const struct moe_progress *, void *);
	void *userdata;
};

static void forward_progress(const struct moe_msg_progress *msg, void *userdata)
{
	const struct progress_call *to = userdata;

	if (to->call)
		to->call(&(struct moe_progress){msg->done_bytes, msg->total_bytes, msg->elapsed_ns, msg->eta_ns},
			 to->userdata);
}

static int copy_word(char *to, size_t size, const char *from, const char *what, struct moe_error *err)
{
	if (strlen(from) >= size)
		return moe_error_set(err, -ENAMETOOLONG, "%s '%.60s...': at most %zu bytes", what, from, size - 1);
	memcpy(to, from, strlen(from) + 1);
	return 0;
}

int moe_load(struct moe_client *client, const char *path, const char *name,
	     void (*progress)(const struct moe_progress *, void *userdata), void *userdata, struct moe_error *err)
{
	struct moe_msg_load load = {0};
	struct moe_msg_loaded reply;
	struct progress_call to = {progress, userdata};
	int r = copy_word(load.path, sizeof load.path, path, "model path", err);

	if (r == 0 && name)
		r = copy_word(load.name, sizeof load.name, name, "model name", err);
	if (r < 0)
		return r;
	wire_begin(&load, sizeof load, MOE_MSG_LOAD, 0);
	pthread_mutex_lock(&client->lock);
	r = send_message(client, &load, NULL, 0, NULL, err);
	if (r == 0)
		r = take_reply(client, MOE_MSG_LOAD, &reply, sizeof reply, NULL, forward_progress, &to, err);
	note_loss(client, r);
	pthread_mutex_unlock(&client->lock);
	return r;
}

int moe_unload(struct moe_client *client, const char *name, struct moe_error *err)
{
	struct moe_msg_unload unload = {0};
	struct moe_msg reply;
	int r = copy_word(unload.name, sizeof unload.name, name, "model name", err);

	if (r < 0)
		return r;
	wire_begin(&unload, sizeof unload, MOE_MSG_UNLOAD, 0);
	pthread_mutex_lock(&client->lock);
	r = call(client, &unload, MOE_MSG_UNLOAD, &reply, sizeof reply, 0, NULL, err);
	pthread_mutex_unlock(&client->lock);
	return r;
}

int moe_trace(struct moe_client *client, int fd, const struct moe_trace_params *params,
	      void (*progress)(const struct moe_progress *, void *userdata), void *userdata,
	      struct moe_trace_result *ret, struct moe_error *err)
{
	struct moe_msg_trace message = {0};
	struct moe_msg_traced reply;
	struct progress_call to = {progress, userdata};
	int r;

	if (params->size != sizeof *params)
		return moe_error_set(err, -EINVAL, "moe_trace: params.size %zu found, sizeof (%zu) expected",
				     params->size, sizeof *params);
	message.max_bytes = params->max_bytes;
	message.max_steps = params->max_steps;
	message.max_ms = params->max_ms;
	r = copy_word(message.name, sizeof message.name, params->model ? params->model : "", "model name", err);
	if (r < 0)
		return r;
	wire_begin(&message, sizeof message, MOE_MSG_TRACE, 1);
	pthread_mutex_lock(&client->lock);
	r = send_message(client, &message, &fd, MOE_FEATURE_TRACE, "records nothing", err);
	if (r == 0)
		r = take_reply(client, MOE_MSG_TRACE, &reply, sizeof reply, NULL, forward_progress, &to, err);
	note_loss(client, r);
	pthread_mutex_unlock(&client->lock);
	if (r == 0)
		*ret = (struct moe_trace_result){.bytes = reply.bytes,
						 .routes = reply.routes,
						 .steps = reply.steps,
						 .lost = reply.lost,
						 .sessions = reply.sources,
						 .end = (enum moe_trace_ending)reply.reason};
	return r;
}

int moe_trace_stop(struct moe_client *client, struct moe_error *err)
{
	struct moe_msg message, reply;
	int r;

	wire_begin(&message, sizeof message, MOE_MSG_TRACE_STOP, 0);
	pthread_mutex_lock(&client->lock);
	r = call(client, &message, MOE_MSG_TRACE_STOP, &reply, sizeof reply, MOE_FEATURE_TRACE, "records nothing", err);
	pthread_mutex_unlock(&client->lock);
	return r;
}

int moe_forget_heat(struct moe_client *client, const char *name, struct moe_error *err)
{
	struct moe_msg_forget message = {0};
	struct moe_msg reply;
	int r = copy_word(message.name, sizeof message.name, name, "model name", err);

	if (r < 0)
		return r;
	wire_begin(&message, sizeof message, MOE_MSG_FORGET, 0);
	pthread_mutex_lock(&client->lock);
	r = call(client, &message, MOE_MSG_FORGET, &reply, sizeof reply, MOE_FEATURE_HEAT, "keeps no heat that lasts",
		 err);
	pthread_mutex_unlock(&client->lock);
	return r;
}

int moe_set_policy(struct moe_client *client, const char *name, const char *policy, struct moe_error *err)
{
	struct moe_msg_policy message = {0};
	struct moe_msg reply;
	int r = copy_word(message.name, sizeof message.name, name, "model name", err);

	if (r == 0)
		r = copy_word(message.policy, sizeof message.policy, policy, "policy", err);
	if (r < 0)
		return r;
	wire_begin(&message, sizeof message, MOE_MSG_POLICY, 0);
	pthread_mutex_lock(&client->lock);
	r = call(client, &message, MOE_MSG_POLICY, &reply, sizeof reply, MOE_FEATURE_POLICY,
		 "does not know of policies", err);
	pthread_mutex_unlock(&client->lock);
	return r;
}
