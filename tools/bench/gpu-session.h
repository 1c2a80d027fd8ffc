/* SPDX-License-Identifier: MIT */
/* gpu-session - a session on the GPU, with room for the requests that `moe-bench device` makes. */
#ifndef TOOLS_BENCH_GPU_SESSION_H
#define TOOLS_BENCH_GPU_SESSION_H

#include "tools/bench/gpu.h"

struct gpu_session {
	struct moe_client *client;
	struct moe_session *session; /* NULL: not attached */
	struct moe_session_info info;
	uint32_t tokens; /* at most */
	uint32_t layer;  /* the first with experts */
	uint64_t random;
	float *x, *y, *weights; /* [tokens][hidden], the same, [tokens][topk] */
	int32_t *ids;           /* [tokens][topk] */
};

/* Attaches; params without size, device and max_tokens, which are filled in. detach follows whatever it returns. */
int gpu_session_attach(struct gpu_session *ret, struct gpu *gpu, struct moe_client *client,
		       const struct moe_attach_params *params, uint32_t tokens, struct moe_error *err);
void gpu_session_detach(struct gpu_session *s);

/* Each token's experts: all different, evenly drawn. */
void gpu_session_draw(struct gpu_session *s, uint32_t tokens);
/* `count` experts from `first` on, round the layer, each once; pairs behind them are padding. Returns the tokens. */
uint32_t gpu_session_list(struct gpu_session *s, uint32_t first, uint32_t count);

/* Plans and submits; *ret_bytes (may be NULL): what it copies. */
int gpu_session_submit(struct gpu_session *s, uint32_t layer, enum moe_mode mode, uint32_t tokens,
		       struct moe_step **ret, uint64_t *ret_bytes, struct moe_error *err);

/* The daemon's statistics of this session; NULL: none. The caller's. */
json_t *gpu_session_stats(const struct gpu_session *s);

/* The loaded models: {"models": [...]}, or NULL. And of them the one that is named, else that with most experts. */
json_t *gpu_models(struct moe_client *client);
const json_t *gpu_model(const struct gpu *gpu, const json_t *models);

#endif
