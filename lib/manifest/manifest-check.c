/* SPDX-License-Identifier: MIT */
#include "manifest/manifest-check.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/util.h"

static const struct moe_layout *layouts_of(const struct moe_manifest *m)
{
	return (const struct moe_layout *)((const char *)m + m->layouts_offset);
}

/* The bytes of a plane of the largest share; false when they cannot be counted. */
static bool plane_bytes(uint64_t *ret, const struct moe_layout *layout, const struct moe_part *part,
			enum moe_plane plane)
{
	const uint32_t band = moe_band_rows(part->format, plane);
	const uint64_t rows = moe_share_room(part->rows, layout->shares);

	return checked_mul(ret, (rows + band - 1) / band, moe_band_bytes(part->format, plane, part->cols));
}

static bool plane_is_sound(const struct moe_layout *layout, uint32_t number, enum moe_plane plane)
{
	const struct moe_part *part = &layout->part[number];
	const uint64_t at = part->plane[plane];
	uint64_t bytes;

	if (plane == MOE_PLANE_CODES && number == MOE_PART_GATE) {
		if (at != 0)
			return false;
	} else if (at == 0) {
		return !moe_format_has(part->format, plane);
	} else if (plane != MOE_PLANE_BIAS && !moe_format_has(part->format, plane)) {
		return false;
	}
	return at % MOE_PART_ALIGN == 0 && plane_bytes(&bytes, layout, part, plane) &&
	       checked_range(at, bytes, layout->record_bytes);
}

static bool part_is_sound(const struct moe_manifest *m, const struct moe_layout *layout, uint32_t number)
{
	const struct moe_part *part = &layout->part[number];
	const bool down = number == MOE_PART_DOWN;
	int plane;

	if (part->format == MOE_FORMAT_NONE || part->format >= MOE_FORMAT_COUNT ||
	    part->rows != (down ? m->hidden : m->inter) || part->cols != (down ? m->inter : m->hidden))
		return false;
	/* Panels have no column outside a scale block. */
	if (moe_formats[part->format].panel && part->cols % moe_formats[part->format].block)
		return false;
	for (plane = 0; plane < MOE_PLANES; plane++)
		if (!plane_is_sound(layout, number, (enum moe_plane)plane))
			return false;
	return true;
}

static bool is_sound(const struct moe_manifest *m, const struct moe_layout *layout)
{
	if (layout->shares != m->n_pools || layout->record_bytes % MOE_RECORD_ALIGN ||
	    layout->record_bytes > m->record_bytes)
		return false;
	for (uint32_t i = 0; i < MOE_PARTS; i++)
		if (!part_is_sound(m, layout, i))
			return false;
	return layout->part[MOE_PART_GATE].format == layout->part[MOE_PART_UP].format;
}

static int check_layouts(const struct moe_manifest *m, struct moe_error *err)
{
	const struct moe_layout *layouts = layouts_of(m);

	for (uint32_t i = 0; i < m->n_layouts; i++)
		if (!is_sound(m, &layouts[i]))
			return moe_error_set(
				err, -EPROTO,
				"manifest: layout %u of %u: formats, sizes or planes do not fit hidden %u, "
				"intermediate %u and a record of %llu bytes in each of %u pool files",
				i, m->n_layouts, m->hidden, m->inter, (unsigned long long)layouts[i].record_bytes,
				m->n_pools);
	return 0;
}

/* A row's records have the layout of its first one, and each lies in the pool files, all of them. */
static int check_records(const struct moe_manifest *m, struct moe_error *err)
{
	const struct moe_layout *layouts = layouts_of(m);
	const struct moe_record *records = (const struct moe_record *)((const char *)m + m->records_offset);
	uint64_t bytes = m->pools[0].bytes;

	for (uint32_t i = 1; i < m->n_pools; i++)
		bytes = MIN(bytes, m->pools[i].bytes);
	for (uint64_t i = 0; i < (uint64_t)m->n_moe_layers * m->n_experts; i++) {
		const struct moe_record *record = &records[i];

		if (record->layout >= m->n_layouts || record->layout != records[i - i % m->n_experts].layout)
			return moe_error_set(err, -EPROTO,
					     "manifest: record %llu: layout %u found, one of %u, the same in a row, "
					     "expected",
					     (unsigned long long)i, record->layout, m->n_layouts);
		if (record->offset % MOE_PART_ALIGN ||
		    !checked_range(record->offset, layouts[record->layout].record_bytes, bytes))
			return moe_error_set(err, -EPROTO,
					     "manifest: record %llu at offset %llu lies outside the pool files, the "
					     "smallest of %llu bytes",
					     (unsigned long long)i, (unsigned long long)record->offset,
					     (unsigned long long)bytes);
	}
	return 0;
}

/* Each layer is dense or has a row. */
static int check_index(const struct moe_manifest *m, struct moe_error *err)
{
	const int32_t *index = (const int32_t *)(m + 1);

	for (uint32_t l = 0; l < m->n_layers; l++)
		if (index[l] < -1 || index[l] >= (int64_t)m->n_moe_layers)
			return moe_error_set(err, -EPROTO, "manifest: layer %u: row %d found, -1 to %u expected", l,
					     index[l], m->n_moe_layers - 1);
	return 0;
}

static int check_tables(const struct moe_manifest *m, uint64_t bytes, struct moe_error *err)
{
	uint64_t index, records;

	if (m->magic != MOE_MANIFEST_MAGIC || m->bytes != bytes || m->layout != MOE_LAYOUT_VERSION)
		return moe_error_set(err, -EPROTO,
				     "manifest: layout %u of %llu bytes found, layout %u of %llu expected", m->layout,
				     (unsigned long long)m->bytes, MOE_LAYOUT_VERSION, (unsigned long long)bytes);
	if (m->n_pools == 0 || m->n_pools > MOE_POOLS_MAX || m->n_layers == 0 || m->n_moe_layers > m->n_layers ||
	    m->n_experts == 0 || m->topk == 0 || m->hidden == 0 || m->inter == 0 || m->n_layouts == 0 ||
	    m->n_layouts > MOE_LAYOUTS_MAX)
		return moe_error_set(err, -EPROTO, "manifest: a count is zero or too large");
	if (!memchr(m->name, 0, sizeof m->name))
		return moe_error_set(err, -EPROTO, "manifest: the name is not terminated");
	index = sizeof *m + (uint64_t)m->n_layers * sizeof(int32_t);
	if (index > bytes || m->layouts_offset % 8 || m->records_offset % 8 || m->layouts_offset < index ||
	    !checked_range(m->layouts_offset, m->n_layouts * sizeof(struct moe_layout), bytes) ||
	    !checked_mul(&records, (uint64_t)m->n_moe_layers * m->n_experts, sizeof(struct moe_record)) ||
	    !checked_range(m->records_offset, records, bytes))
		return moe_error_set(err, -EPROTO, "manifest: tables lie outside its %llu bytes",
				     (unsigned long long)bytes);
	return 0;
}

int manifest_check(const struct moe_manifest *m, uint64_t bytes, struct moe_error *err)
{
	int r = check_tables(m, bytes, err);

	if (r == 0)
		r = check_index(m, err);
	if (r == 0)
		r = check_layouts(m, err);
	return r < 0 ? r : check_records(m, err);
}
