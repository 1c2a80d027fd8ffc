/* SPDX-License-Identifier: MIT */
/*
 * cgroup - the control groups that bind this process: its own and each above it, up to the root of its namespace, in
 * the one hierarchy of version 2 or in a controller's own of version 1.
 */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

/* Calls `look` with each group's folder (O_PATH) and the version, 1 or 2. Without /proc there are none. */
void cgroup_walk(const char *controller, void (*look)(int folder, int version, void *userdata), void *userdata);

#endif
