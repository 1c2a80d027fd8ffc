/* SPDX-License-Identifier: MIT */
/*
 * model - what a published Hugging Face folder says: its config, its shards, and where each tensor lies.
 *
 * Pure reading: config.json, model.safetensors.index.json and the shards' headers, never tensor data. Whatever a file
 * contains, the answer is a table that has been checked in full or an error that names file, field, found and expected.
 * Shared by the daemon (expert tensors) and by tools (the rest).
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "model/file.h"
#include "moe-error.h"

enum model_family {
	FAMILY_MIXTRAL,
	FAMILY_QWEN2_MOE,
	FAMILY_QWEN3_MOE,
	FAMILY_OLMOE,
	FAMILY_DEEPSEEK_V2,
	FAMILY_DEEPSEEK_V3, /* V3, R1 */
	FAMILY_KIMI_K2,
	FAMILY_GLM4_MOE,
	FAMILY_GPT_OSS,
	FAMILY_COUNT
};

/* What is refused as absurd, long before memory is asked for it. */
#define MODEL_LAYERS_MAX 1024u
#define MODEL_EXPERTS_MAX 4096u
#define MODEL_DIM_MAX (1u << 20)
#define MODEL_TOPK_MAX 64u
#define MODEL_SHARDS_MAX 65536u

/* The same numbers as enum moe_activation of the ABI. */
enum model_activation { MODEL_SILU = 0, MODEL_GELU = 1, MODEL_GELU_TANH = 2, MODEL_SWIGLU_CLAMPED = 3 };

/* Who quantized the folder, and thereby how its tensors are called and packed (quant.h). */
enum quant_method { QUANT_NONE, QUANT_FP8, QUANT_COMPRESSED, QUANT_GPTQ, QUANT_AWQ, QUANT_MXFP4 };

struct model_quant {
	enum quant_method method;
	bool symmetric;       /* zero points, where a tensor of them is there at all, say nothing */
	bool zeros_less_one;  /* of eight stored zero points, as one word, 1 was subtracted from each */
	uint32_t bits, group; /* of the experts, 0: the tensors' shapes say it */
	uint32_t block[2];    /* rows and columns of an FP8 block, 0: no blocks */
};

/* What config.json says about the experts. */
struct model_config {
	enum model_family family;
	char model_type[32];
	uint32_t n_layers, n_experts, topk, hidden, inter; /* inter: of one routed expert */
	uint32_t activation;                               /* enum model_activation */
	float limit;                                       /* of MODEL_SWIGLU_CLAMPED, else 0 */
	struct model_quant quant;
	bool *is_moe; /* [n_layers] */
	uint32_t n_moe_layers;
	json_t *json; /* the whole file, for who needs more */
};

/* enum of safetensors dtypes that the reader knows; `unknown dtype` is an error that names it. */
enum tensor_type {
	TENSOR_F64,
	TENSOR_F32,
	TENSOR_F16,
	TENSOR_BF16,
	TENSOR_F8_E4M3,
	TENSOR_F8_E5M2,
	TENSOR_I64,
	TENSOR_I32,
	TENSOR_I16,
	TENSOR_I8,
	TENSOR_U8,
	TENSOR_U16,
	TENSOR_U32,
	TENSOR_U64,
	TENSOR_BOOL,
	TENSOR_GGML = 64 /* and above: the types that only GGUF files know (gguf.h) */
};

#define TENSOR_DIMS_MAX 8

struct tensor {
	const char *name;
	uint32_t shard; /* index into model.shards */
	enum tensor_type type;
	uint32_t n_dims;
	uint64_t dims[TENSOR_DIMS_MAX];
	uint64_t offset; /* from the start of the file */
	uint64_t bytes;
};

struct shard {
	char *path;
	uint64_t bytes; /* of the file */
	struct file_id id;
};

struct model {
	char *path;
	struct model_config config;
	struct shard *shards;
	uint32_t n_shards;
	struct tensor *tensors; /* sorted by name */
	uint64_t n_tensors;
	struct gguf *gguf; /* what the files say of themselves (gguf.h); NULL: the model is not of GGUF files */
};

/*
 * Opens the folder, reads and checks everything but tensor data: afterwards expert_layout() and expert_sources()
 * (expert.h) cannot fail, and every tensor that they name is there in its type and shape. The index decides which shard
 * a tensor is read from; what a shard holds beyond the index is not part of the model. Without an index a single
 * model.safetensors is the model.
 *
 * Codes: -ENOENT something is missing, -EINVAL a file contradicts its format or another file, -ENOTSUP it is sound but
 * of a kind that is not served (family, quantization, tensor type), -E2BIG beyond a limit, or what the system said.
 */
int model_open(struct model **ret, const char *path, struct moe_error *err);
struct model *model_free(struct model *model); /* takes NULL, returns NULL */

/* NULL when there is none. */
const struct tensor *model_tensor(const struct model *model, const char *name);

enum expert_part { PART_GATE, PART_UP, PART_DOWN, PARTS };

/*
 * The published name of an expert's matrix in this family without its last word, as in
 * "model.layers.3.mlp.experts.17.up_proj". Where one tensor holds all experts it is that tensor's:
 * "model.layers.3.mlp.experts.gate_up_proj".
 */
void model_expert_stem(char *ret, size_t size, enum model_family family, uint32_t layer, uint32_t expert,
		       enum expert_part part);

/* The same with ".weight": an unquantized expert's tensor. */
void model_expert_name(char *ret, size_t size, enum model_family family, uint32_t layer, uint32_t expert,
		       enum expert_part part);

const char *tensor_type_name(enum tensor_type type);
uint32_t tensor_type_bytes(enum tensor_type type); /* of an element; of a type from TENSOR_GGML on: of a block */
const char *model_family_name(enum model_family family);

/* -- the parts of it, apart so that tests and fuzzers reach them -------------------------------------------------- */

/* safetensors.c: a header's bytes (JSON, without the 8-byte length) of a file of `file_bytes` -> tensors appended to
 * *tensors (realloc'ed); names are malloc'ed. Limits: header 16 MiB, 65,536 tensors a shard, 8 dims, names 255 bytes.
 * Tensors must cover the data section exactly: no hole, no overlap, nothing out of range. On failure *tensors is as it
 * was. Pure, no I/O. */
#define SAFETENSORS_HEADER_MAX (16u << 20)
#define SAFETENSORS_TENSORS_MAX 65536u
int safetensors_parse(const char *file, const char *header, uint64_t header_bytes, uint64_t file_bytes, uint32_t shard,
		      struct tensor **tensors, uint64_t *n_tensors, struct moe_error *err);
/* Reads length and header of one file and parses them. */
int safetensors_read(const char *path, uint32_t shard, uint64_t *ret_file_bytes, struct tensor **tensors,
		     uint64_t *n_tensors, struct moe_error *err);
/* Frees the names and the array; takes NULL, returns NULL. */
struct tensor *tensors_free(struct tensor *tensors, uint64_t n_tensors);

/* config.c: config.json's text -> config. Pure. `file` names it in errors. */
int model_config_parse(const char *file, const char *text, size_t bytes, struct model_config *ret,
		       struct moe_error *err);
void model_config_free(struct model_config *config);

#endif
