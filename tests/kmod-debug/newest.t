#!/bin/sh
# SPDX-License-Identifier: MIT
#
# newest - the module and the importer of the tests build against the newest headers that Debian offers, with W=1, without a
# warning. The headers' own programs need Debian's newer C library: it is done in a chroot, as root.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd) || exit 1
cd "$root" || exit 1

skip() {
	echo "1..0 # SKIP $*"
	exit 0
}

# With a /proc and a /dev of this one command alone.
in_newest() {
	# shellcheck disable=SC2016 # for the other shell
	unshare --mount sh -c 'new=$1 && shift && mount -t proc proc "$new/proc" && mount --rbind /dev "$new/dev" &&
		exec chroot "$new" "$@"' sh "$new" "$@"
}

build() {
	in_newest make -C /headers "M=$2" CONFIG_DEBUG_INFO_BTF_MODULES= W=1 modules >"$dir/log" 2>&1
	code=$?
	! grep -iE '\.[ch]:.*(warning|error)|modpost:' "$dir/log" >/dev/null || code=1
	[ "$code" = 0 ] && [ -s "$new$2/$3" ] && echo "ok $1 - $3: $(basename -- "$(readlink "$new/headers")")" && return
	sed 's/^/# /' "$dir/log"
	echo "not ok $1 - $3"
}

lacks=$(scripts/debug-kernel.sh missing newest) || skip "no $lacks headers: make check-kmod-debug fetches them"
[ "$(id -u)" = 0 ] || skip 'chroot is for root'
new=$(scripts/debug-kernel.sh where newest)/root
mkdir -p "$new/tmp" && dir=$(mktemp -d "$new/tmp/moe.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "$dir/lib/uapi" && cp -R Kbuild kmod tests/kmod/importer "$dir/" &&
	cp lib/uapi/moe_kmod.h lib/uapi/moe_ring.h "$dir/lib/uapi/" || exit 1
build 1 "${dir#"$new"}" kmod/moe_expert.ko
build 2 "${dir#"$new"}/importer" moe_importer.ko
echo 1..2
