/* SPDX-License-Identifier: MIT */
/*
 * chart - lines over a number, as SVG: a share from 0 to 1 by something that is counted from 0 on.
 *
 * Law: written as it comes, nothing is kept: begin, then for each line its name and its points from left to right, end.
 * Text is written so that XML has no other meaning for it.
 */
#ifndef TOOLS_MOECTL_CHART_H
#define TOOLS_MOECTL_CHART_H

#include <stdbool.h>
#include <stdio.h>

struct chart {
	const char *title, *x_axis, *y_axis;
	double x_max;
	FILE *to; /* from here on chart.c's */
	unsigned lines;
	bool open;
};

void chart_begin(struct chart *chart, FILE *to);
void chart_line(struct chart *chart, const char *name, bool dashed);
void chart_point(struct chart *chart, double x, double y);
void chart_end(struct chart *chart);

/* "<a & b>" without its meaning. */
void chart_text(const char *text, FILE *to);

#endif
