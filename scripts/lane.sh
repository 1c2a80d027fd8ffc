# shellcheck shell=sh
# SPDX-License-Identifier: MIT
#
# lane.sh - what scripts/*-lane.sh share: packages of Debian fetched by an apt with folders of its own, so that the
# system's lists, sources and packages stay as they are. They set $lane, the folder that holds it all, and $lane_name.

: "${lane_name:?}"
case ${lane:?} in
/*) ;;
*) lane=$PWD/$lane ;;
esac

say() { printf '%s: %s\n' "$lane_name" "$*" >&2; }
fail() {
	say "$*"
	exit 1
}

usage() {
	say "$* (try --help)"
	exit 2
}

# -- parts --------------------------------------------------------------------------------------------------------

# Of what a script prepares by parts it says mark_of PART, the file that is made last, and have PART.

# The first of these parts that is not there is printed.
parts_missing() {
	for part in "$@"; do
		have "$part" || {
			echo "$part"
			return 1
		}
	done
}

# part_where PART: its folder.
part_where() {
	[ "$#" = 1 ] || usage 'where: which part?'
	mark=$(mark_of "$1") || exit 2
	dirname -- "$mark"
}

# -- packages -----------------------------------------------------------------------------------------------------

# No lock of the system's is taken either: nothing is installed.
apt_with() {
	tool=$1
	shift
	"$tool" -q -o Dir::Etc::sourcelist="$lane/apt/sources.list" -o Dir::Etc::sourceparts=- \
		-o Dir::State::Lists="$lane/apt/lists" -o Dir::Cache="$lane/apt/cache" -o APT::Sandbox::User= \
		-o Acquire::Languages=none -o APT::Architecture=amd64 -o Acquire::Retries=2 -o Debug::NoLocking=true "$@"
}

need_tools() {
	for tool in "$@"; do
		command -v "$tool" >/dev/null || fail "$tool is not installed"
	done
}

# apt_prepare SOURCE...: each as "deb bookworm main"; MOE_DEBIAN_MIRROR is where from.
apt_prepare() {
	need_tools apt-get apt-cache dpkg
	keys=/usr/share/keyrings/debian-archive-keyring.gpg
	[ -r "$keys" ] || fail "$keys is not here: install the package debian-archive-keyring"
	umask 022
	mkdir -p "$lane/apt/lists/partial" "$lane/apt/cache/archives/partial" "$lane/debs" || exit 1
	mirror=${MOE_DEBIAN_MIRROR:-http://deb.debian.org/debian}
	for source in "$@"; do
		printf '%s [signed-by=%s] %s %s\n' "${source%% *}" "$keys" "$mirror" "${source#* }"
	done >"$lane/apt/sources.list"
	say "fetching from $mirror into $lane"
	apt_with apt-get update >&2 || fail 'apt-get update failed (see above)'
}

# The package that a package without content of its own stands for, e.g. the newest kernel. Further words go to apt.
apt_meaning() {
	package=$1
	shift
	apt_with apt-cache "$@" depends --no-recommends --no-suggests "$package" |
		sed -n 's/^ *Depends: \(linux-[^ ]*\)/\1/p' | head -n 1
}

# unpack FOLDER DEB...: all at once or not at all.
unpack() {
	folder=$1
	shift
	rm -rf "$folder.new"
	for deb in "$@"; do
		dpkg -x "$deb" "$folder.new" || fail "cannot unpack $deb"
	done
	rm -rf "$folder"
	mv "$folder.new" "$folder" || exit 1
}

# -- a run --------------------------------------------------------------------------------------------------------

running= # the machine, while there is one: it ends with the run

end_run() {
	trap '' HUP INT TERM
	[ -z "$running" ] || kill "$running" 2>/dev/null
	rm -rf "$dir"
}

# begin_run NAME: $dir is a folder for it alone, which goes with it.
begin_run() {
	dir=$(mktemp -d "${TMPDIR:-/tmp}/$1.XXXXXX") || exit 1
	trap end_run EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
}
