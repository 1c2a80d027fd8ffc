/* SPDX-License-Identifier: MIT */
#include "chart.h"

#define LEFT 60
#define TOP 40
#define WIDTH 560
#define HEIGHT 360
#define LEGEND 150
#define BELOW 60 /* of a chart, for its axis */
#define GRID 5   /* lines across, and up */

/* Seven that can be told apart by most eyes, then the same darker. */
static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999",
				      "#003b5c", "#7a3600", "#005a41", "#7d3f64", "#8a5f00", "#1f6f99", "#444444"};

#define COLOURS (sizeof colours / sizeof *colours)

void chart_text(const char *text, FILE *to)
{
	for (; *text; text++) {
		if (*text == '<')
			fputs("&lt;", to);
		else if (*text == '>')
			fputs("&gt;", to);
		else if (*text == '&')
			fputs("&amp;", to);
		else if ((unsigned char)*text >= ' ')
			fputc(*text, to);
	}
}

static double x_of(const struct chart *c, double x)
{
	return LEFT + x / c->x_max * WIDTH;
}

static double y_of(const struct chart *c, double y)
{
	return TOP + (1 - y / c->y_max) * HEIGHT;
}

double chart_round(double value)
{
	double power = 1;

	while (value > 10 * power)
		power *= 10;
	while (value <= power)
		power /= 10;
	return value <= 2 * power ? 2 * power : value <= 5 * power ? 5 * power : 10 * power;
}

static void write_grid(const struct chart *c)
{
	for (unsigned i = 0; i <= GRID; i++) {
		const double y = c->y_max * i / GRID, x = c->x_max * i / GRID;

		fprintf(c->to, "<path d=\"M%d %.1fh%d M%.1f %dv%d\" stroke=\"#dddddd\"/>\n", LEFT, y_of(c, y), WIDTH,
			x_of(c, x), TOP, HEIGHT);
		fprintf(c->to, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 6, y_of(c, y) + 4,
			y);
		fprintf(c->to, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n", x_of(c, x),
			TOP + HEIGHT + 18, x);
	}
}

void chart_open(unsigned charts, FILE *to)
{
	fprintf(to,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%u\" font-family=\"sans-serif\" "
		"font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		LEFT + WIDTH + LEGEND, charts * (TOP + HEIGHT + BELOW));
}

void chart_close(FILE *to)
{
	fputs("</svg>\n", to);
}

void chart_begin(struct chart *c, unsigned i, FILE *to)
{
	c->to = to;
	c->lines = 0;
	c->open = false;
	fprintf(to, "<g transform=\"translate(0,%u)\">\n<text x=\"%d\" y=\"20\">", i * (TOP + HEIGHT + BELOW), LEFT);
	chart_text(c->title, to);
	fputs("</text>\n", to);
	write_grid(c);
	fprintf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", LEFT + WIDTH / 2, TOP + HEIGHT + 38);
	chart_text(c->x_axis, to);
	fprintf(to, "</text>\n<text transform=\"translate(16,%d) rotate(-90)\" text-anchor=\"middle\">",
		TOP + HEIGHT / 2);
	chart_text(c->y_axis, to);
	fputs("</text>\n", to);
}

static void close_line(struct chart *c)
{
	if (c->open)
		fputs("\"/>\n", c->to);
	c->open = false;
}

void chart_line(struct chart *c, const char *name, bool dashed)
{
	const char *colour = colours[c->lines % COLOURS], *dashes = dashed ? " stroke-dasharray=\"6 3\"" : "";
	const unsigned y = TOP + 10 + 18 * c->lines++;

	close_line(c);
	fprintf(c->to, "<path d=\"M%d %uh18\" stroke=\"%s\" stroke-width=\"2\"%s/>\n<text x=\"%d\" y=\"%u\">",
		LEFT + WIDTH + 14, y, colour, dashes, LEFT + WIDTH + 38, y + 4);
	chart_text(name, c->to);
	fprintf(c->to, "</text>\n<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", colour, dashes);
	c->open = true;
}

void chart_point(struct chart *c, double x, double y)
{
	fprintf(c->to, "%.1f,%.1f ", x_of(c, x), y_of(c, y));
}

void chart_end(struct chart *c)
{
	close_line(c);
	fputs("</g>\n", c->to);
}
