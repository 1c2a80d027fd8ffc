/* SPDX-License-Identifier: MIT */
/*
 * onednn - what differs between oneDNN 2 and 3: in 2 a memory descriptor is a struct and a primitive has an operation
 * descriptor; in 3 the former is an object and the latter is gone.
 */
#ifndef TOOLS_BENCH_ONEDNN_H
#define TOOLS_BENCH_ONEDNN_H

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>

#if DNNL_VERSION_MAJOR < 3
typedef const dnnl_memory_desc_t *onednn_desc_in;
#define ONEDNN_IN(desc) (&(desc))

static inline dnnl_status_t onednn_strided(dnnl_memory_desc_t *ret, const dnnl_dims_t dims, dnnl_data_type_t type,
					   const dnnl_dims_t strides)
{
	return dnnl_memory_desc_init_by_strides(ret, 2, dims, type, strides);
}

static inline dnnl_status_t onednn_any(dnnl_memory_desc_t *ret, const dnnl_dims_t dims, dnnl_data_type_t type)
{
	return dnnl_memory_desc_init_by_tag(ret, 2, dims, type, dnnl_format_tag_any);
}

static inline dnnl_status_t onednn_desc_copy(dnnl_memory_desc_t *ret, onednn_desc_in from)
{
	*ret = *from;
	return dnnl_success;
}

static inline void onednn_desc_free(dnnl_memory_desc_t *desc)
{
}

static inline dnnl_status_t onednn_swish(dnnl_post_ops_t ops)
{
	return dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_swish, 1, 0);
}

static inline dnnl_status_t onednn_product(dnnl_primitive_desc_t *ret, dnnl_engine_t engine, bool inner,
					   onednn_desc_in src, onednn_desc_in weights, onednn_desc_in dst,
					   const_dnnl_primitive_attr_t attr)
{
	dnnl_inner_product_desc_t inner_desc;
	dnnl_matmul_desc_t desc;
	dnnl_status_t r = inner ? dnnl_inner_product_forward_desc_init(&inner_desc, dnnl_forward_inference, src,
								       weights, NULL, dst)
				: dnnl_matmul_desc_init(&desc, src, weights, NULL, dst);

	if (r != dnnl_success)
		return r;
	return dnnl_primitive_desc_create(ret, inner ? (const void *)&inner_desc : &desc, attr, engine, NULL);
}
#else
typedef const_dnnl_memory_desc_t onednn_desc_in;
#define ONEDNN_IN(desc) (desc)

static inline dnnl_status_t onednn_strided(dnnl_memory_desc_t *ret, const dnnl_dims_t dims, dnnl_data_type_t type,
					   const dnnl_dims_t strides)
{
	return dnnl_memory_desc_create_with_strides(ret, 2, dims, type, strides);
}

static inline dnnl_status_t onednn_any(dnnl_memory_desc_t *ret, const dnnl_dims_t dims, dnnl_data_type_t type)
{
	return dnnl_memory_desc_create_with_tag(ret, 2, dims, type, dnnl_format_tag_any);
}

static inline dnnl_status_t onednn_desc_copy(dnnl_memory_desc_t *ret, onednn_desc_in from)
{
	return dnnl_memory_desc_clone(ret, from);
}

static inline void onednn_desc_free(dnnl_memory_desc_t *desc)
{
	if (*desc)
		dnnl_memory_desc_destroy(*desc);
}

static inline dnnl_status_t onednn_swish(dnnl_post_ops_t ops)
{
	return dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_swish, 1, 0);
}

static inline dnnl_status_t onednn_product(dnnl_primitive_desc_t *ret, dnnl_engine_t engine, bool inner,
					   onednn_desc_in src, onednn_desc_in weights, onednn_desc_in dst,
					   const_dnnl_primitive_attr_t attr)
{
	if (inner)
		return dnnl_inner_product_forward_primitive_desc_create(ret, engine, dnnl_forward_inference, src,
									weights, NULL, dst, attr);
	return dnnl_matmul_primitive_desc_create(ret, engine, src, weights, NULL, dst, attr);
}
#endif

#endif
