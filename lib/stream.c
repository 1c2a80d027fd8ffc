/* SPDX-License-Identifier: MIT */
/*
 * stream - a stream of the session's device, for callers that have none from elsewhere.
 *
 * On a GPU it is a CUstream like any other; on the host nothing but this makes one.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine.h"
#include "moe-expert.h"

struct moe_stream {
	struct engine *engine;
	struct device_stream *stream;
	struct device_event *reached;
};

int moe_stream_new(struct moe_session *session, struct moe_stream **ret, struct moe_error *err)
{
	struct engine *e = session->engine;
	struct moe_stream *s;
	int r;

	if (!e->has_slots)
		return moe_error_set(err, -ENOTSUP,
				     "moe_stream_new: a session without slots has no device: set "
				     "cache_expert_num");
	s = calloc(1, sizeof *s);
	if (!s)
		return moe_error_set(err, -ENOMEM, "moe_stream_new: no memory");
	s->engine = e;
	r = e->ops->stream_new(e->device, DEVICE_PRIORITY_HIGH, &s->stream, err);
	if (r == 0)
		r = e->ops->event_new(e->device, &s->reached, err);
	if (r < 0) {
		moe_stream_free(s);
		return r;
	}
	*ret = s;
	return 0;
}

uintptr_t moe_stream_handle(const struct moe_stream *stream)
{
	return stream->engine->ops->stream_handle(stream->stream);
}

int moe_stream_wait(struct moe_stream *stream, uint32_t timeout_ms, struct moe_error *err)
{
	const struct device_ops *ops = stream->engine->ops;
	int r = ops->event_record(stream->reached, stream->stream);

	if (r == 0)
		r = ops->event_wait(stream->reached, timeout_ms * (uint64_t)1000000);
	if (r == -ETIMEDOUT)
		return moe_error_set(err, r, "moe_stream_wait: the stream has work left after %u ms", timeout_ms);
	if (r < 0 && ops->failure(stream->engine->device))
		return moe_error_set(err, r, "%s", ops->failure(stream->engine->device));
	return r < 0 ? moe_error_sys(err, r, "moe_stream_wait: work of this stream has failed") : 0;
}

struct moe_stream *moe_stream_free(struct moe_stream *stream)
{
	if (stream) {
		stream->engine->ops->stream_free(stream->stream);
		stream->engine->ops->event_free(stream->reached);
		free(stream);
	}
	return NULL;
}
