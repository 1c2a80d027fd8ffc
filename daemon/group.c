/* SPDX-License-Identifier: MIT */
#include "daemon/group.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/util.h"
#include "daemon/events.h"
#include "daemon/service.h"

#define NAMED_MAX 4 /* ranks, of more the number */

enum likeness { SAME_ENTRY, SAME_WEIGHTS, SAME_SHAPE, OTHER_MODEL };

static enum likeness likeness_of(const struct entry *a, const struct entry *b)
{
	const struct moe_manifest *m = a->model->manifest, *n = b->model->manifest;

	if (a == b)
		return SAME_ENTRY;
	if (memcmp(m->digest, n->digest, sizeof m->digest) == 0)
		return SAME_WEIGHTS;
	return m->n_layers == n->n_layers && m->n_moe_layers == n->n_moe_layers && m->n_experts == n->n_experts &&
			       m->topk == n->topk && m->hidden == n->hidden && m->inter == n->inter
		       ? SAME_SHAPE
		       : OTHER_MODEL;
}

static bool is_member(const struct session *s, const struct peer *peer, const struct moe_msg_attach *a)
{
	return !s->dead && a->group && s->attach.group == a->group && s->uid == peer->uid;
}

/* "dp 0 tp 1 ep 0 (pid 7) has 'name' 0123abcd..." of those that are like that. */
static void list_ranks(const struct peer *peer, const struct moe_msg_attach *a, const struct entry *entry,
		       enum likeness like, char *to, size_t size)
{
	uint32_t named = 0, more = 0;
	size_t n = 0;

	*to = '\0';
	for (const struct session *s = peer->service->sessions; s; s = s->next) {
		const struct moe_manifest *m = s->entry->model->manifest;
		const uint8_t *d = m->digest;

		if (!is_member(s, peer, a) || likeness_of(s->entry, entry) != like)
			continue;
		if (named == NAMED_MAX || n >= size - 1) {
			more++;
			continue;
		}
		n += (size_t)snprintf(to + n, size - n, "%sdp %u tp %u ep %u (pid %d) has '%.20s' %02x%02x%02x%02x",
				      named++ ? ", " : "", s->attach.dp_rank, s->attach.tp_rank, s->attach.ep_rank,
				      s->pid, m->name, d[0], d[1], d[2], d[3]);
		n = MIN(n, size - 1);
	}
	if (more)
		snprintf(to + n, size - n, ", and %u more", more);
}

static int tell(const struct peer *peer, const struct moe_msg_attach *a, const struct entry *entry, enum likeness like,
		struct moe_error *err)
{
	const struct moe_manifest *m = entry->model->manifest;
	const uint8_t *d = m->digest;
	char ranks[256], text[sizeof err->text];

	list_ranks(peer, a, entry, like, ranks, sizeof ranks);
	snprintf(text, sizeof text,
		 "group %llx: dp %u tp %u ep %u (pid %d) attaches to '%.20s' %02x%02x%02x%02x, but %s",
		 (unsigned long long)a->group, a->dp_rank, a->tp_rank, a->ep_rank, peer->pid, m->name, d[0], d[1], d[2],
		 d[3], ranks);
	event_log(EVENT_RANKS_DIFFER, FACTS(.pid = peer->pid, .uid = peer->uid, .model = m->name, .reason = text),
		  "%s%s", text, like == OTHER_MODEL ? ": models of other shapes, it is let in" : ": refused");
	if (like == OTHER_MODEL)
		return 0;
	if (like == SAME_WEIGHTS)
		return moe_error_set(err, -EXDEV,
				     "%s: the same weights loaded twice, whose ranks cannot agree; attach to one name",
				     text);
	return moe_error_set(err, -ESTALE, "%s: other weights; attach all by one digest, or name another group", text);
}

int group_check(const struct peer *peer, const struct moe_msg_attach *a, const struct entry *entry,
		struct moe_error *err)
{
	enum likeness worst = SAME_ENTRY;

	for (const struct session *s = peer->service->sessions; s; s = s->next) {
		const enum likeness like = is_member(s, peer, a) ? likeness_of(s->entry, entry) : SAME_ENTRY;
		const bool agrees = a->dp_size && s->attach.dp_size;

		if (like == SAME_SHAPE)
			return tell(peer, a, entry, like, err);
		if (like == OTHER_MODEL || (like == SAME_WEIGHTS && agrees))
			worst = worst == SAME_WEIGHTS ? worst : like;
	}
	return worst == SAME_ENTRY ? 0 : tell(peer, a, entry, worst, err);
}
