#!/bin/sh
# SPDX-License-Identifier: MIT
#
# deb.sh - builds the Debian packages from a copy of this tree, which stays as it is.
#
#   scripts/deb.sh [--version VERSION] [--to FOLDER]
#
#   --version VERSION  call them so, and not as debian/changelog does (to try an upgrade: 0.1.0+again)
#   --to FOLDER        where they go, and the copy with them; default build-deb of this tree. Earlier ones there are removed
#
# What is copied is what git knows or would take; without git all but build folders. No tests are run (debian/rules).
# Exit codes: 0 done, 1 failed, 2 usage, 77 the packages that build packages are missing: what to type is printed.
set -u

say() { printf 'deb: %s\n' "$*" >&2; }
fail() {
	say "$*"
	exit 1
}

version=
to=
while [ $# -gt 0 ]; do
	case $1 in
	-h | --help)
		sed -n '4,12s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	--version | --to)
		[ $# -ge 2 ] || {
			say "$1 needs a value (try --help)"
			exit 2
		}
		[ "$1" = --to ] && to=$2 || version=$2
		shift 2
		;;
	*)
		say "unknown option $1 (try --help)"
		exit 2
		;;
	esac
done

# From where it was typed.
[ -z "$to" ] || { mkdir -p "$to" && to=$(CDPATH='' cd -- "$to" && pwd); } || exit 1
cd "$(dirname -- "$0")/.." || exit 1
if ! command -v dpkg-buildpackage >/dev/null || ! command -v dh >/dev/null; then
	say 'dpkg-buildpackage or dh is missing; type: apt-get install dpkg-dev debhelper && apt-get build-dep .'
	exit 77
fi

# The names of all files, each ended by a NUL byte; not those that are gone and not yet committed as such.
list() {
	if [ -e .git ] && git rev-parse >/dev/null 2>&1; then
		git ls-files -z --cached --others --exclude-standard | perl -0ne 'chomp; print "$_\0" if -e or -l'
	else
		find . \( -path ./build -o -path './build-*' -o -path ./.git \) -prune -o -type f -print0
	fi
}

[ -n "$version" ] || version=$(dpkg-parsechangelog -S Version) || exit 1
[ -n "$to" ] || { mkdir -p build-deb && to=$PWD/build-deb; } || exit 1
copy=$to/moe-expertd-$version
log=$to/moe-expertd_$version.log

rm -rf "$copy"
find "$to" -maxdepth 1 -type f \( -name 'moe-expertd_*' -o -name 'moe-expertd-*_*.deb' -o -name 'libmoe-expert*_*.deb' \) -delete
if ! mkdir "$copy" || ! list | tar -c --null --no-recursion -T - | tar -x -C "$copy"; then
	fail "$copy: the tree was not copied"
fi
sed -i "1s/([^)]*)/($version)/" "$copy/debian/changelog" || exit 1

say "building $version in $copy"
(cd "$copy" && dpkg-buildpackage -b -us -uc) >"$log" 2>&1 || {
	tail -n 40 "$log" >&2
	fail "failed; all that was said stands in $log"
}
rm -rf "$copy"
ls "$to"/*.deb
