#!/bin/sh
# SPDX-License-Identifier: MIT
#
# system - the packages in a clean Debian 12 with a whole systemd: installed, used, killed, upgraded, rebooted, removed.
#
# They are those of $MOE_DEBS (default build-deb), built first when they are not there or older than a file of the tree.
set -u

root=${MOE_SOURCE:-$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)} || exit 1
cd "$root" || exit 1
debs=${MOE_DEBS:-build-deb}

skip_all() {
	echo "1..0 # SKIP $*"
	exit 0
}

# Without git nobody knows which files are the tree's.
up_to_date() {
	deb=$(ls "$debs"/moe-expertd_*.deb 2>/dev/null) && git rev-parse >/dev/null 2>&1 || return 1
	# shellcheck disable=SC2016 # for the shell that xargs starts
	newer=$(git ls-files -z --cached --others --exclude-standard 2>/dev/null |
		xargs -0 -r sh -c 'find "$@" -newer "$0" -print -quit' "$deb" 2>/dev/null) && [ -z "$newer" ]
}

reason=$(scripts/vm-lane.sh ready) || skip_all "$reason"
. /etc/os-release
[ "${ID-} ${VERSION_ID-}" = 'debian 12' ] || [ -n "${MOE_DEBS-}" ] ||
	skip_all "packages that are built on ${PRETTY_NAME-this system} are not for Debian 12"
[ -n "${MOE_DEBS-}" ] || up_to_date || scripts/deb.sh >&2 || {
	[ $? != 77 ] || skip_all 'what builds packages is not installed: dpkg-dev and debhelper'
	exit 1
}
exec scripts/vm-lane.sh run "$debs"
