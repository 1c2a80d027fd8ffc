/* SPDX-License-Identifier: MIT */
/*
 * search - the scale of a group of weights that loses least: the smallest sum of squared errors among the candidates,
 * each of them rounded to the type in which it is stored before the codes are computed.
 *
 * Cutting the largest weights off a little often wins: the others get finer steps for it. A group has a multiple of 8
 * weights.
 */
#ifndef MKMODEL_SEARCH_H
#define MKMODEL_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"

/* w = scale * code, code from lo to hi. */
struct grid {
	float lo, hi;
};

/* The error of the group on this grid with this scale (not 0). */
float search_error(const float *x, uint32_t n, struct grid grid, float scale);

/* The code of one weight. */
int search_code(float x, struct grid grid, float scale);

/* The best scale in `type`; 1 for zeros, and above 0 unless `both` signs are allowed. */
float search_scale(const float *x, uint32_t n, struct grid grid, enum tensor_type type, bool both);

/* w = scale * (code - zero), code from 0 to 15, zero from `first` to `last`, scale in `type`. */
struct affine {
	float scale;
	uint8_t zero;
};

struct affine search_affine(const float *x, uint32_t n, uint8_t first, uint8_t last, enum tensor_type type);

/* w = scale * code + minimum, code from 0 to hi; with `below`, the minimum is not above 0. Scale 0: all are alike. */
struct ramp {
	float scale, minimum;
};

struct ramp search_ramp(const float *x, uint32_t n, float hi, bool below);

/* The error of a group on a ramp whose scale is not 0. */
float search_ramp_error(const float *x, uint32_t n, float hi, struct ramp ramp);

/* w = scale * values[code], values ascending: the code of x / scale, the error, and the best scale, 0 for zeros. */
uint8_t search_nearest(const int8_t values[16], float x);
float search_table_error(const float *x, uint32_t n, const int8_t values[16], float scale);
float search_table(const float *x, uint32_t n, const int8_t values[16]);

#endif
