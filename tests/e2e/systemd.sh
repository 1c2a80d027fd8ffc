# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # $dir is lib.sh's
#
# systemd.sh - for scripts that need a service manager: one of the user kind, in a mount namespace where systemd seems to
# run, and in a control group of its own, so that the machine's manager and groups stay as they are.

# The folders of this process's groups that systemd looks at: hierarchy name=systemd and the unified one.
own_groups() {
	while IFS=: read -r _ name path; do
		case $name in
		'' | name=systemd) ;;
		*) continue ;;
		esac
		awk -v name="$name" -v path="${path%/}" '
			$3 == "cgroup2" && name == "" { print $2 path }
			$3 == "cgroup" && name != "" && $4 ~ name { print $2 path }' /proc/self/mounts
	done </proc/self/cgroup
}

# What a failed test has left in them ends with them.
leave_groups() {
	while read -r group; do
		for try in 1 2 3 4 5; do
			find "$group/moe-keep-$$" -name cgroup.procs -exec cat {} + 2>/dev/null | while read -r process; do
				kill -9 "$process"
			done
			find "$group/moe-keep-$$" -depth -type d -exec rmdir {} + 2>/dev/null
			[ -d "$group/moe-keep-$$" ] || break
			sleep 0.$try
		done
	done <"$dir/groups"
}

# need_systemd: makes the groups, or skips all tests and says why.
need_systemd() {
	[ -x /lib/systemd/systemd ] || skip_all 'systemd is not installed'
	[ "$(id -u)" = 0 ] || skip_all 'needs root, for a mount namespace and a control group'
	unshare --mount true 2>/dev/null || skip_all 'mount namespaces are forbidden here'
	own_groups >"$dir/groups"
	[ -s "$dir/groups" ] || skip_all 'no control groups are mounted here'
	while read -r group; do
		mkdir "$group/moe-keep-$$" 2>/dev/null || rmdir "$group/moe-keep-$$" 2>/dev/null || touch "$dir/forbidden"
	done <"$dir/groups"
	[ ! -e "$dir/forbidden" ] || {
		leave_groups
		skip_all 'control groups cannot be made here'
	}
}

# where_systemd_is COMMAND...: there; its exit code. Not in the background: call `leave_groups` when nothing of it lives.
where_systemd_is() {
	(
		while read -r group; do
			sh -c 'echo $PPID' >"$group/moe-keep-$$/cgroup.procs" || exit 1
		done <"$dir/groups"
		# Its marker of a booted system, in a /run that only this process sees.
		# shellcheck disable=SC2016
		exec unshare --mount sh -c '[ -d /run/systemd/system ] ||
			{ mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system; } && exec "$@"' sh "$@"
	)
}
