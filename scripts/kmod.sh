#!/bin/sh
# SPDX-License-Identifier: MIT
#
# kmod.sh - builds the kernel module moe_expert.ko, without leaving anything among the sources.
#
#   scripts/kmod.sh [-o FOLDER] [KERNEL] [MAKE-ARGUMENT...]
#
#   KERNEL     a folder of a kernel's headers (default: those of the running kernel, /lib/modules/RELEASE/build)
#   -o FOLDER  where it is built (default build-kmod); the module is FOLDER/kmod/moe_expert.ko
#
# Exit codes: 0 built, 1 it does not build, 2 usage, 77 there are no headers.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
out=$here/build-kmod

say() { printf 'kmod: %s\n' "$*" >&2; }

usage() {
	sed -n '4,11s/^# \{0,1\}//p' "$0"
}

case ${1-} in
-h | --help)
	usage
	exit 0
	;;
-o)
	[ "$#" -ge 2 ] || {
		say 'which folder? (try --help)'
		exit 2
	}
	out=$2
	shift 2
	;;
-*)
	say "unknown option $1 (try --help)"
	exit 2
	;;
esac
release=$(uname -r)
kernel=${1:-/lib/modules/$release/build}
[ "$#" = 0 ] || shift

if [ ! -e "$kernel/Makefile" ]; then
	say "no headers of a kernel in $kernel"
	say "for the running one: apt-get install linux-headers-$release; for another: make kmod KDIR=/usr/src/linux-headers-..."
	exit 77
fi

# The kernel's build writes beside the sources.
mkdir -p "$out/lib/uapi" "$out/kmod" && cp "$here/Kbuild" "$out/" && cp "$here"/kmod/*.[ch] "$here/kmod/Kbuild" "$out/kmod/" &&
	cp "$here/lib/uapi/moe_kmod.h" "$here/lib/uapi/moe_ring.h" "$out/lib/uapi/" && out=$(CDPATH='' cd -- "$out" && pwd) || exit 1
# Without BTF, which needs the kernel's own image.
make -C "$kernel" -j "$(nproc)" "M=$out" CONFIG_DEBUG_INFO_BTF_MODULES= "$@" modules || exit 1
say "built $out/kmod/moe_expert.ko"
