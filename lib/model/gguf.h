/* SPDX-License-Identifier: MIT */
/*
 * gguf - a model published as GGUF files: one file, or parts named NAME-00001-of-0000N.gguf.
 *
 * A file is: "GGUF", version 2 or 3 | the number of tensors | the number of metadata values | the values | for each
 * tensor its name, sizes, type and place | the tensors' data. Everything is little-endian. Sizes are written fastest
 * first; in struct tensor they stand as everywhere else, slowest first: experts are [expert][row][column].
 *
 * Experts are served where they lie merged, one tensor of a layer's gate, one of its up, one of its down:
 * blk.N.ffn_gate_exps.weight and so on, with or without .bias; or gate and up in one, ffn_gate_up_exps, which has of
 * each expert all rows of the gate and then all of up. Each layer may have types of its own, part by part. Other
 * tensors of a layer, shared experts (_shexp) among them, are the worker's.
 * Nothing of the vocabulary is kept, and of strings only short ones.
 */
#ifndef MODEL_GGUF_H
#define MODEL_GGUF_H

#include "model/expert.h"
#include "model/model.h"

/* Whether the path looks like such a model: a file by its name or first bytes, a folder by what is in it. Cheap. */
bool gguf_is(const char *path);

/*
 * Fills config, shards, tensors and gguf of a zeroed model whose path is set, all of it checked: afterwards every part
 * of every expert is known to be there in its shape and in a served type. A folder must hold exactly one model. On
 * failure model_free() takes what is there. Codes as of model_open.
 */
int gguf_open(struct model *model, const char *path, struct moe_error *err);

/* As expert_layout and expert_sources (expert.h). */
void gguf_expert_layout(const struct model *model, uint32_t layer, struct moe_layout *ret);
uint32_t gguf_expert_sources(const struct model *model, uint32_t layer, uint32_t expert,
			     struct expert_source ret[EXPERT_SOURCES_MAX]);

/*
 * A metadata value of the model. A key that begins with a dot continues the name of the architecture: ".block_count".
 * False (NULL) when there is none of that name, or it is of another kind or does not fit; *ret is untouched then.
 */
bool gguf_u32(const struct model *model, const char *key, uint32_t *ret);
bool gguf_f32(const struct model *model, const char *key, float *ret);
bool gguf_bool(const struct model *model, const char *key, bool *ret);
const char *gguf_string(const struct model *model, const char *key);

/* -- the parts of it, apart so that tests and fuzzers reach them -------------------------------------------------- */

/* gguf-header.c: the first bytes of a file become checked values and tensors. */
#define GGUF_HEADER_MAX (256u << 20)
#define GGUF_TENSORS_MAX 65536u
#define GGUF_VALUES_MAX 65536u

enum gguf_kind { GGUF_UNSIGNED, GGUF_SIGNED, GGUF_FLOAT, GGUF_BOOL, GGUF_STRING };

struct gguf_value {
	char *key;
	enum gguf_kind kind;
	union {
		uint64_t u;
		int64_t i;
		double f;
	};
	char *string; /* of GGUF_STRING */
};

struct gguf {
	struct gguf_value *values; /* sorted by key: scalars, and strings of at most 255 bytes */
	uint64_t n_values;
	struct tensor *tensors; /* of one file; an opened model has them in its own table */
	uint64_t n_tensors;
};

/*
 * `header` is the first `bytes` of a file of `file_bytes`. -ENODATA: the header goes on beyond them, and so does the
 * file. Tensors lie in the file and do not overlap. *ret is untouched on failure. Pure, no I/O.
 */
int gguf_parse(const char *file, const void *header, uint64_t bytes, uint64_t file_bytes, uint32_t shard,
	       struct gguf *ret, struct moe_error *err);
int gguf_read(const char *path, uint32_t shard, uint64_t *ret_file_bytes, struct gguf *ret, struct moe_error *err);
void gguf_clear(struct gguf *gguf);
struct gguf *gguf_free(struct gguf *gguf); /* takes NULL, returns NULL */
const struct gguf_value *gguf_find(const struct gguf *gguf, const char *key);

/* gguf-files.c: the files of the model at a path, in order; free with gguf_files_free. */
int gguf_files(const char *path, char ***ret, uint32_t *ret_n, struct moe_error *err);
char **gguf_files_free(char **files, uint32_t n);

/* gguf-expert.c: finds the layers that carry experts (config.is_moe, n_moe_layers) and checks all of them. */
int gguf_check_experts(struct model *model, struct moe_error *err);

/* gguf-type.c: the numbers by which ggml names its types. A plain type has a dtype of its own in enum tensor_type, any
 * other is TENSOR_GGML + number. */
struct gguf_type {
	const char *name;         /* NULL: no such type */
	uint16_t elements, bytes; /* of a block */
	uint8_t plain;            /* enum tensor_type + 1 */
	uint8_t format;           /* enum moe_format; 0: not served */
};

const struct gguf_type *gguf_type(uint32_t number); /* NULL: unknown */
const struct gguf_type *gguf_tensor_type(enum tensor_type type);

#endif
