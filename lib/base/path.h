/* SPDX-License-Identifier: MIT */
/*
 * path - what a path names, so that it can be compared and kept.
 */
#ifndef BASE_PATH_H
#define BASE_PATH_H

/* Absolute, and its folders without links; of a file the name as it was given: parts of a GGUF model know each other by
 * their names, and in the Hugging Face cache each is a link to a file that is named after its digest. malloc'ed, or
 * NULL and errno. */
char *path_real(const char *given);

#endif
