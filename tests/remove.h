/* SPDX-License-Identifier: MIT */
/* remove - a folder with all that is in it goes, a file by itself too; links are not followed. */
#ifndef TESTS_REMOVE_H
#define TESTS_REMOVE_H

#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>

static inline int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	return remove(path);
}

/* 0, also where there is nothing; -1: something is left. */
static inline int remove_all(const char *path)
{
	struct stat st;

	nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	return lstat(path, &st) == 0 ? -1 : 0;
}

#endif
