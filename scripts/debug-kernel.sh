#!/bin/sh
# SPDX-License-Identifier: MIT
#
# debug-kernel.sh - builds kernels that look for faults, small ones from Debian's source, for the machines of
# qemu-lane.sh, which then boots them, as 6.12-kasan.
#
#   scripts/debug-kernel.sh prepare PART...  once: fetches and builds what is not there yet
#   scripts/debug-kernel.sh missing PART...  prints the first of these parts that is not there (exit code 1), or nothing
#   scripts/debug-kernel.sh where PART       prints the folder of a part
#
# Parts: build-tools (flex, bison, libelf, sparse: 30 MB), source-6.12 (Debian's linux-source-6.12: 150 MB are fetched,
# 1.7 GB unpacked), 6.12-kasan (6 to 20 minutes, 400 MB). tests/kmod-debug/NAME.config says what is on
# in them; when it is changed, they are built anew. newest (90 MB are fetched, 380 MB unpacked): the newest headers that
# Debian offers for its stable release, with the compiler that they need, for chroot; root/headers is their folder's name.
# They lie below $MOE_QEMU_LANE, as what qemu-lane.sh fetches does, and work only there. Exit codes: 0 there, 1 failed,
# 2 usage.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
lane=${MOE_QEMU_LANE:-$here/build-qemu-lane}
lane_name=debug-kernel
# shellcheck source=scripts/lane.sh
. "$here/scripts/lane.sh"
tools=$lane/build-tools/usr

# What shows that a part is whole: made last.
mark_of() {
	case $1 in
	build-tools) echo "$lane/build-tools/whole" ;;
	source-6.12) echo "$lane/source-6.12/whole" ;;
	newest) echo "$lane/newest/whole" ;;
	6.12-kasan) echo "$lane/kernel-$1/vmlinuz" ;;
	*) usage "no part is named $1" ;;
	esac
}

fragment() {
	cat "$here/tests/kmod-debug/small.config" "$here/tests/kmod-debug/${1#*-}.config"
}

have() {
	mark=$(mark_of "$1") || exit 2
	[ -e "$mark" ] || return 1
	case $1 in
	6.12-kasan) fragment "$1" | cmp -s - "$lane/kernel-$1/fragment" ;;
	esac
}

# Their programs run where they lie.
with_tools() {
	PATH=$tools/bin:$PATH BISON_PKGDATADIR=$tools/share/bison M4=$tools/bin/m4 \
		C_INCLUDE_PATH=$tools/include:$tools/include/x86_64-linux-gnu LIBRARY_PATH=$tools/lib/x86_64-linux-gnu \
		LD_LIBRARY_PATH=$tools/lib/x86_64-linux-gnu "$@"
}

fetch() {
	debs=$lane/debs/$1
	part=$1
	shift
	rm -rf "$debs"
	mkdir -p "$debs" || exit 1
	(cd "$debs" && apt_with apt-get download "$@" >&2) || fail 'apt-get download failed (see above)'
	unpack "$lane/$part" "$debs"/*.deb
	rm -rf "$debs"
}

# What scripts/deps.sh need not install on every machine for this alone.
prepare_tools() {
	fetch build-tools flex bison m4 libfl2 libelf-dev libelf1 zlib1g-dev bc sparse
	: >"$lane/build-tools/whole"
}

# Debian's source of the kernel that check-kmod boots.
prepare_source() {
	fetch source-6.12 -t bookworm-backports linux-source-6.12
	(cd "$lane/source-6.12" && tar -xf usr/src/linux-source-6.12.tar.xz && mv linux-source-6.12 linux &&
		rm usr/src/linux-source-6.12.tar.xz && : >whole) || fail 'the source cannot be unpacked'
}

# Debian's newest kernels need a newer compiler and C library than this system has: a root without an installation.
prepare_newest() {
	apt_prepare 'deb trixie main' 'deb trixie-backports main'
	headers=$(apt_with apt-cache -t trixie-backports depends linux-headers-cloud-amd64 |
		sed -n 's/^ *Depends: \(linux-headers-[0-9][^ ]*\)/\1/p' | head -n 1)
	[ -n "$headers" ] || fail 'apt names no headers for linux-headers-cloud-amd64'
	debs=$lane/debs/newest
	root=$lane/newest/root
	rm -rf "$debs" "$lane/newest"
	mkdir -p "$debs/partial" "$root/usr/bin" "$root/usr/sbin" "$root/usr/lib" "$root/usr/lib64" "$root/proc" "$root/dev" || exit 1
	apt_with apt-get -t trixie-backports -o Dir::State::status=/dev/null -o Dir::Cache::archives="$debs" --download-only \
		--no-install-recommends --yes install "$headers" make gcc-14 libc6-dev bash coreutils dash sed grep mawk findutils \
		perl-base >&2 || fail 'apt-get install --download-only failed (see above)'
	for name in bin sbin lib lib64; do
		ln -s "usr/$name" "$root/$name" || exit 1
	done
	for deb in "$debs"/*.deb; do
		dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --keep-directory-symlink || fail "cannot unpack $deb"
	done
	ln -s mawk "$root/usr/bin/awk" && ln -s gcc-14 "$root/usr/bin/gcc" && ln -s "usr/src/$headers" "$root/headers" || exit 1
	rm -rf "$debs"
	: >"$lane/newest/whole"
}

# Each line of it that is not in the configuration that was made is a name that has changed, or that needs another.
check_config() {
	grep '^CONFIG.*=[^n]' "$1/fragment" | grep -vxFf "$1/.config" >"$1/lacking" || return 0
	fail "the configuration lacks: $(tr '\n' ' ' <"$1/lacking")"
}

build_kernel() {
	out=$lane/kernel-$1
	mkdir -p "$out" || exit 1
	rm -f "$out/vmlinuz"
	fragment "$1" >"$out/fragment" || exit 1
	set -- make -s -C "$lane/source-6.12/linux" "O=$out" KBUILD_BUILD_USER=moe KBUILD_BUILD_HOST=moe
	say "building $out (see $out/log)"
	with_tools "$@" KCONFIG_ALLCONFIG="$out/fragment" allnoconfig >"$out/log" 2>&1 || fail "no configuration: see $out/log"
	check_config "$out"
	with_tools nice -n 19 "$@" "-j$(nproc)" bzImage modules >>"$out/log" 2>&1 || fail "it does not build: see $out/log"
	ln -s arch/x86/boot/bzImage "$out/vmlinuz" && ln -sfn . "$out/build" || exit 1
}

prepare() {
	[ "$#" -gt 0 ] || usage 'prepare: which parts?'
	parts_missing "$@" >/dev/null && return
	need_tools make gcc nproc cmp tar xz
	parts_missing build-tools source-6.12 >/dev/null || apt_prepare 'deb bookworm main' 'deb bookworm-backports main'
	have build-tools || prepare_tools
	have source-6.12 || prepare_source
	case " $* " in
	*' newest '*) have newest || prepare_newest ;;
	esac
	for part in "$@"; do
		have "$part" && continue
		build_kernel "$part"
		say "prepared $(dirname -- "$(mark_of "$part")")"
	done
}

verb=${1-}
[ "$#" = 0 ] || shift
case $verb in
prepare) prepare "$@" ;;
missing) parts_missing "$@" ;;
where) part_where "$@" ;;
-h | --help) sed -n '4,18s/^# \{0,1\}//p' "$0" ;;
*) usage 'which? prepare, missing or where' ;;
esac
