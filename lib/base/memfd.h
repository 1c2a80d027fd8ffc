/* SPDX-License-Identifier: MIT */
/*
 * memfd - shared memory whose properties the receiver can prove.
 *
 * A memfd that crosses a process boundary here always carries F_SEAL_SHRINK and F_SEAL_GROW, so that the other side can
 * never be killed by SIGBUS through truncation, and F_SEAL_SEAL, so that nobody adds seals later. The receiver calls
 * memfd_verify() before it maps anything: a region that was not verified is never touched.
 */
#ifndef BASE_MEMFD_H
#define BASE_MEMFD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moe-error.h"

/* An empty memfd without seals, close-on-exec, mode 0600, not executable where the kernel knows that. `flags`:
 * MFD_HUGETLB and a size, or 0. Whoever makes it seals it. Returns the fd or -errno. */
int memfd_open(const char *name, unsigned flags);

/* Creates a zeroed memfd of `bytes` (rounded up to pages by the caller), close-on-exec, mode 0600, not executable
 * where the kernel knows that, size sealed. All of its pages are made here, on the caller's bill: a shortage is an
 * error now and not SIGBUS later. Returns the fd or -errno. */
int memfd_new(const char *name, uint64_t bytes, struct moe_error *err);

/* As memfd_new, with pages for its first `with_pages` bytes only. More can be made, from `offset` on: 0 or -errno. */
int memfd_new_sparse(const char *name, uint64_t bytes, uint64_t with_pages, struct moe_error *err);
int memfd_make_pages(int fd, uint64_t offset, uint64_t bytes);

/* Gives the pages of a range back, whoever has them mapped: who does finds zeros, in pages of its own. */
void memfd_drop_pages(int fd, uint64_t offset, uint64_t bytes);

/* As memfd_new, with `bytes` of content and F_SEAL_WRITE: an immutable document. */
int memfd_new_sealed(const char *name, const void *content, uint64_t bytes, struct moe_error *err);
/* The same in parts: writes at the file's end, and seals it. 0 or -errno. */
int memfd_append(int fd, const void *content, uint64_t bytes);
int memfd_seal(int fd);
int memfd_seal_size(int fd); /* its size alone */

/* A second, read-only open of the same memory (through /proc/self/fd): what a peer of another user may hold without
 * being able to write. Returns the fd or -errno (-ENOENT where /proc is not mounted; -EAGAIN, and no wait, where
 * somebody has a write lease on it). */
int memfd_reopen_readonly(int fd);

/* 0 when fd is a memfd (tmpfs or hugetlbfs) of at least `min_bytes` that carries all `seals`; else -EINVAL and the
 * reason. *ret_bytes (may be NULL) receives the exact size. `what` names the fd in the error. */
int memfd_verify(int fd, uint64_t min_bytes, int seals, uint64_t *ret_bytes, const char *what, struct moe_error *err);

/* True for what has seals: a memfd, or another file in memory. Waits for nothing, and neither does closing it. */
bool memfd_has_seals(int fd);

/* True for a memfd of huge pages. */
bool memfd_is_hugetlb(int fd);

/* mmap(MAP_SHARED) with `prot`; NULL never, -errno in the return value, address in *ret. */
int memfd_map(void **ret, int fd, uint64_t bytes, int prot, const char *what, struct moe_error *err);

/* The page that `at` lies in is mapped to be written, and no other one: a load's fault would take fifteen neighbours
 * with it, and a page that is mapped costs again when the process ends. A matter of time only; on failure it is as it
 * was. */
void memfd_want_page(void *at);

#endif
