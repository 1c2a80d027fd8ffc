/* SPDX-License-Identifier: MIT */
/*
 * json-memory - memory for parsing JSON, reserved before the parser begins.
 *
 * Law: while a text is parsed no allocation of jansson's fails. Its parser does not survive one that does: up to 2.14
 * it drops a byte of the token it reads, then pops that byte from an empty buffer, writes in front of it, or fails an
 * assertion. So the most that the values of a text can take is mapped first, untouched pages cost nothing, and want of
 * memory is an error before the first byte is read. What comes out is an ordinary value; the reservation goes with the
 * last part of it.
 *
 * The allocator is jansson's, for the whole process, from the first parse on; it is malloc() for all else, and values
 * that were made before it came may be freed through it.
 */
#ifndef MODEL_JSON_MEMORY_H
#define MODEL_JSON_MEMORY_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* As json_loadb(). 0; -ENOMEM: no memory, `why` is untouched; -EINVAL: `why` says why. Thread-safe. */
int json_memory_parse(json_t **ret, const char *text, size_t bytes, size_t flags, json_error_t *why);

/* The same, but of a text with a whole number beyond 2^63 - 1, which jansson refuses without a word of where it stands,
 * every number becomes a real one: who reads the field says what was found and what it may be. */
int json_memory_parse_any(json_t **ret, const char *text, size_t bytes, size_t flags, json_error_t *why);

/* Bytes that parsing this text may take at most; 0: more than can be counted. */
uint64_t json_memory_bound(const char *text, size_t bytes);

/* For tests: bytes of all reservations that are there, and how often one was too small, so that malloc() was asked. */
void json_memory_stats(uint64_t *ret_reserved, uint64_t *ret_fallbacks);

#endif
