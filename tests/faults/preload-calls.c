/* SPDX-License-Identifier: MIT */
/*
 * preload-calls - the part of preload.c that stands before system calls of which nothing is counted but that they are
 * made: files, descriptors, messages.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "tests/faults/preload.h"

int memfd_create(const char *name, unsigned int flags)
{
	return fails(FILES, EMFILE) ? -1 : REAL(memfd_create)(name, flags);
}

int ftruncate(int fd, off_t bytes)
{
	return fails(FILES, ENOSPC) ? -1 : REAL(ftruncate)(fd, bytes);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
	return fails(FILES, ENOSPC) ? -1 : REAL(fallocate)(fd, mode, offset, bytes);
}

int fchmod(int fd, mode_t mode)
{
	return fails(FILES, ENOMEM) ? -1 : REAL(fchmod)(fd, mode);
}

int fcntl(int fd, int command, ...)
{
	va_list list;
	void *argument;

	va_start(list, command);
	argument = va_arg(list, void *);
	va_end(list);
	if (command == F_ADD_SEALS && fails(FILES, EBUSY))
		return -1;
	if (command == F_DUPFD_CLOEXEC && fails(DESCRIPTOR, EMFILE))
		return -1;
	return REAL(fcntl)(fd, command, argument);
}

int open(const char *path, int flags, ...)
{
	va_list list;
	mode_t mode;

	va_start(list, flags);
	mode = va_arg(list, mode_t);
	va_end(list);
	return fails(DESCRIPTOR, EMFILE) ? -1 : REAL(open)(path, flags, mode);
}

int eventfd(unsigned int count, int flags)
{
	return fails(DESCRIPTOR, EMFILE) ? -1 : REAL(eventfd)(count, flags);
}

int timerfd_create(clockid_t clock, int flags)
{
	return fails(DESCRIPTOR, EMFILE) ? -1 : REAL(timerfd_create)(clock, flags);
}

int pipe2(int ends[2], int flags)
{
	return fails(DESCRIPTOR, EMFILE) ? -1 : REAL(pipe2)(ends, flags);
}

int signalfd(int fd, const sigset_t *mask, int flags)
{
	return fails(DESCRIPTOR, EMFILE) ? -1 : REAL(signalfd)(fd, mask, flags);
}

int socket(int domain, int type, int protocol)
{
	return fails(DESCRIPTOR, EMFILE) ? -1 : REAL(socket)(domain, type, protocol);
}

int accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
	return fails(DESCRIPTOR, EMFILE) ? -1 : REAL(accept4)(fd, address, bytes, flags);
}

long syscall(long number, ...)
{
	long a[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_pidfd_open && fails(DESCRIPTOR, EMFILE))
		return -1;
	return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	return fails(MESSAGE, ENOBUFS) ? -1 : REAL(sendmsg)(fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	return fails(MESSAGE, ENOMEM) ? -1 : REAL(recvmsg)(fd, message, flags);
}
