/* SPDX-License-Identifier: MIT */
/*
 * chart - lines over a number, as SVG, charts one below the other: something from 0 up, by something that is counted
 * from 0 on.
 *
 * Law: written as it comes, nothing is kept: open, then of each chart begin, for each line its name and its points from
 * left to right, end; then close. Text is written so that XML has no other meaning for it.
 */
#ifndef TOOLS_MOECTL_CHART_H
#define TOOLS_MOECTL_CHART_H

#include <stdbool.h>
#include <stdio.h>

struct chart {
	const char *title, *x_axis, *y_axis;
	double x_max, y_max;
	FILE *to; /* from here on chart.c's */
	unsigned lines;
	bool open;
};

/* A file of so many charts, and its end. */
void chart_open(unsigned charts, FILE *to);
void chart_close(FILE *to);

/* The i-th of them. */
void chart_begin(struct chart *chart, unsigned i, FILE *to);
void chart_line(struct chart *chart, const char *name, bool dashed);
void chart_point(struct chart *chart, double x, double y);
void chart_end(struct chart *chart);

/* What an axis ends with that has to reach `value`: 1, 2 or 5 times a power of ten. */
double chart_round(double value);

/* "<a & b>" without its meaning. */
void chart_text(const char *text, FILE *to);

#endif
