#!/bin/sh
# SPDX-License-Identifier: MIT
#
# deps.sh - installs the Debian packages that are missing, and nothing when none is.
#
#   scripts/deps.sh           what the build needs
#   scripts/deps.sh --check   what the tests need as well, and what can be used: libmicrohttpd, ncurses, oneDNN, ggml, where packaged
#
# A thing counts as there when it works (a command, a header, a pkg-config module), whoever installed it. Exit codes:
# 0 all there, 1 installing failed, 2 usage, 77 not a Debian-like system or no right to install: the list is printed.
set -u

say() { printf 'deps: %s\n' "$*" >&2; }

fail() {
	say "$*"
	exit 1
}

have_command() { command -v "$1" >/dev/null 2>&1; }
have_library() { have_command pkg-config && pkg-config --exists "$1" 2>/dev/null; }

# Sets $missing to the packages to install, prints why each is needed when $verbose is 1.
missing=
wanted=
verbose=0
need() {
	[ "$verbose" = 0 ] || say "  $1: $2"
	missing="$missing $1"
}

# What nothing fails without: only where the lists know the package.
want() {
	[ -n "$(apt-cache show "$1" 2>/dev/null)" ] || return
	[ "$verbose" = 0 ] || say "  $1: $2"
	wanted="$wanted $1"
}

look_for_build() {
	have_command cc || have_command gcc || need gcc 'the C compiler'
	[ -e /usr/include/stdio.h ] || need libc6-dev 'headers of the C library and of the kernel'
	have_command meson || need meson 'configures the build'
	have_command ninja || need ninja-build 'runs the build'
	have_command pkg-config || need pkgconf 'finds the libraries'
	have_library 'liburing >= 2.3' || need liburing-dev 'io_uring, for reading weights and for waiting'
	have_library numa || need libnuma-dev 'memory on the right NUMA node'
	have_library 'jansson >= 2.13' || need libjansson-dev 'JSON, for config.json and statistics'
	have_library 'libxxhash >= 0.8.0' || need libxxhash-dev 'XXH3-128, the digest of each expert'
	have_library 'libsystemd >= 252' || need libsystemd-dev 'D-Bus, for org.moeexpertd.Manager1'
}

look_for_check() {
	have_command g++ || have_command c++ || need g++ 'the ABI headers must also compile as C++'
	if ! have_command prove || ! perl -MJSON::PP -MTAP::Harness -e 1 2>/dev/null; then
		need perl 'prove, which runs the tests'
	fi
	have_command ps || need procps 'ps, with which tests look at processes'
	have_command clang || want clang 'proves that the memory of clients is read in one place only (optional)'
	have_command clang-format-14 || want clang-format-14 'the format of the code (optional)'
	have_command shellcheck || want shellcheck 'looks for mistakes in shell scripts (optional)'
	have_library 'libmicrohttpd >= 0.9.71' || want libmicrohttpd-dev 'moe-expertd --metrics (optional)'
	have_command dbus-daemon || need dbus-daemon 'a bus, for the tests of org.moeexpertd.Manager1'
	have_command mandoc || want mandoc 'a second reader of the manual pages (optional)'
	have_library ncursesw || want libncurses-dev 'the screen of moectl top (optional)'
	have_command dpkg-buildpackage || want dpkg-dev 'builds the Debian packages (optional)'
	have_command dh || want debhelper 'builds them as well'
	[ -e /usr/bin/dh_dkms ] || want dh-dkms 'for the one of the kernel module'
	have_command fakeroot || want fakeroot 'for files that belong to root in them'
	have_command lintian || want lintian 'knows the rules for them'
	python3 -c 'import yaml' 2>/dev/null || want python3-yaml 'reads the Kubernetes manifests'
	have_command systemctl || want systemd 'says where units go'
	[ -e /usr/include/oneapi/dnnl/dnnl.h ] || want libdnnl-dev 'oneDNN, a peer in moe-bench compare (optional)'
	[ -e /usr/include/ggml.h ] || want libggml-dev 'ggml, another one (optional)'
}

look() {
	missing=
	wanted=
	look_for_build
	[ "$check" = 0 ] || look_for_check
}

check=0
case "${1-}" in
'') ;;
--check) check=1 ;;
-h | --help)
	sed -n '4,10s/^# \{0,1\}//p' "$0"
	exit 0
	;;
*)
	say "unknown option $1 (try --help)"
	exit 2
	;;
esac

look
[ -n "$missing$wanted" ] || exit 0

if ! have_command apt-get || ! have_command dpkg; then
	say 'this is not a Debian-like system; please install what these Debian packages hold, then start again:'
	verbose=1
	look
	exit 77
fi

# It may be there for others only, and where nobody types it must not ask for a password.
sudo_works() { have_command sudo && { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; }; }

if [ "$(id -u)" = 0 ]; then
	as_root() { "$@"; }
elif sudo_works; then
	as_root() { sudo "$@"; }
else
	[ -n "$missing" ] || exit 0
	say 'packages are missing and neither root nor sudo is at hand; as root, type:'
	say "  apt-get update && apt-get install --no-install-recommends$missing"
	exit 77
fi

apt() {
	as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 apt-get -q -y \
		-o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" >&2
}

install() {
	# Word splitting is meant: one argument per package.
	# shellcheck disable=SC2086
	[ -z "$missing" ] || apt install --no-install-recommends $missing
}

have_lists() {
	for list in /var/lib/apt/lists/*_Packages*; do
		[ -e "$list" ] && return 0
	done
	return 1
}

say 'installing with apt-get, because they are missing here:'
verbose=1
look
verbose=0

if ! have_lists; then
	say 'no package lists yet: apt-get update'
	apt update || fail 'apt-get update failed (see above)'
	install || fail 'apt-get install failed (see above)'
elif ! install; then
	say 'apt-get install failed; once more with fresh package lists'
	apt update || fail 'apt-get update failed (see above)'
	install || fail 'apt-get install failed (see above)'
fi

look
if [ -n "$missing" ]; then
	say "installed, but still not usable:$missing"
	exit 1
fi
# shellcheck disable=SC2086
[ -z "$wanted" ] || apt install --no-install-recommends $wanted || say "goes on without$wanted"
say 'all there now'
