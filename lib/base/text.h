/* SPDX-License-Identifier: MIT */
/* text - what others have written, made fit for documents, buses and terminals. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stdint.h>

static inline bool text_is_utf8(const char *text)
{
	for (const uint8_t *p = (const uint8_t *)text; *p; p++) {
		const int more = *p < 0x80                 ? 0
				 : *p >= 0xc2 && *p < 0xe0 ? 1
				 : *p >= 0xe0 && *p < 0xf0 ? 2
				 : *p >= 0xf0 && *p < 0xf5 ? 3
							   : -1;
		/* Overlong, surrogates, above U+10FFFF. */
		const uint8_t least = *p == 0xe0   ? 0xa0
				      : *p == 0xf0 ? 0x90
						   : 0x80,
			      most = *p == 0xed   ? 0x9f
				     : *p == 0xf4 ? 0x8f
						  : 0xbf;

		if (more < 0 || (more > 0 && (p[1] < least || p[1] > most)))
			return false;
		for (int i = 1; i <= more; i++)
			if ((p[i] & 0xc0) != 0x80)
				return false;
		p += more;
	}
	return true;
}

/* JSON and D-Bus take only UTF-8: in place, '?' stands for other bytes. Returns `text`. */
static inline char *text_to_utf8(char *text)
{
	const bool good = text_is_utf8(text);

	for (char *p = text; !good && *p; p++)
		if ((unsigned char)*p >= 0x80)
			*p = '?';
	return text;
}

/* The same, and for what a terminal would obey. */
static inline char *text_clean(char *text)
{
	for (char *p = text_to_utf8(text); *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	return text;
}

#endif
