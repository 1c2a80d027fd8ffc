/* SPDX-License-Identifier: MIT */
/* doctor-user - the user as whom the service runs, who may read less than the root that asks. */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor.h"
#include "model/model.h"

#define SERVICE_USER "moe-expertd" /* of the unit and its sysusers.d */
#define SERVICE_FILES "/etc/moe-expertd/expertd.conf"

/* Another process has to be that user: errno, or 0. */
static int open_as(const struct passwd *user, const char *path)
{
	struct model *model;
	int r;

	if (initgroups(user->pw_name, user->pw_gid) < 0 || setresgid(user->pw_gid, user->pw_gid, user->pw_gid) < 0 ||
	    setresuid(user->pw_uid, user->pw_uid, user->pw_uid) < 0)
		return 0;
	r = model_open(&model, path, NULL);
	return r < 0 ? -r : 0;
}

bool service_may_read(const struct report *r, const struct settings_model *m)
{
	const bool is_service = !*r->root && m->file && strncmp(m->file, SERVICE_FILES, strlen(SERVICE_FILES)) == 0;
	const struct passwd *user = is_service && geteuid() == 0 ? getpwnam(SERVICE_USER) : NULL;
	pid_t child;
	int status;

	if (!user)
		return true;
	child = fork();
	if (child == 0)
		_exit(open_as(user, m->path));
	while (child > 0 && waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return true;
	return child < 0 || !WIFEXITED(status) || (WEXITSTATUS(status) != EACCES && WEXITSTATUS(status) != EPERM);
}
