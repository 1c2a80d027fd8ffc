/* SPDX-License-Identifier: MIT */
/*
 * heat-file - a model's heat in a folder of the daemon's own, as heat-DIGEST.
 *
 * Law: a file is there whole or not at all: it is written under another name, brought to disk, and renamed. Reading
 * takes no longer than the table allows, whatever lies there; what is no regular file is refused. A save runs on a
 * thread of its own, after the one before it, and so does a removal: a disk that hangs holds up nobody but itself.
 */
#ifndef DAEMON_HEAT_FILE_H
#define DAEMON_HEAT_FILE_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/heat-table.h"

/* All of them block. 0, -ENOENT (reading: the folder is there, the file is not), or -errno: *err names the file. */
int heat_file_read(const char *folder, struct heat_page *page, struct moe_error *err);
int heat_file_write(const char *folder, const struct heat_page *encoded, struct moe_error *err);
int heat_file_remove(const char *folder, const struct heat_page *page, struct moe_error *err);

/* A save or a removal that runs. */
struct heat_save {
	pthread_t thread;
	struct heat_save *before; /* whose end it waits for */
	const char *folder;       /* the caller's, who keeps it */
	struct heat_page *copy;   /* to remove: its head alone */
	bool removes;
	_Atomic bool done;
	int code;
	struct moe_error error;
};

/* 0 or -errno. *ret is to be joined, which waits for its end. It begins when `before` (NULL: none) has ended, which is
 * its to join then. */
int heat_save_start(struct heat_save **ret, const char *folder, const struct heat_page *page, struct heat_save *before);
/* The same of the file's removal. */
int heat_remove_start(struct heat_save **ret, const char *folder, const struct heat_page *page,
		      struct heat_save *before);
/* Its end, as heat_file_write or heat_file_remove says it: the first failure of it and those before. */
int heat_save_join(struct heat_save *save, struct moe_error *err);

#endif
