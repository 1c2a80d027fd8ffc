# shellcheck shell=sh
# SPDX-License-Identifier: MIT
#
# in-qemu - test_kernel K builds the kernel module, and the one that imports dma-bufs, without a warning for the kernel
# K, Debian's own (6.1-cloud) or one of scripts/debug-kernel.sh (6.12-kasan), and runs test-kmod in a machine with that
# kernel, two NUMA nodes and 64 huge pages of 2 MiB. TAP comes from within.
#
#   TEST_CYCLES    how often the module is loaded and unloaded, 100 by default
#   TEST_PART      one part of it alone, by its name in test-kmod.c
#   TEST_COMMANDS  how many random commands it gets, 60000 by default
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd) || exit 1
program=${MOE_BUILD:-$root/build}/tests/test-kmod
lane=$root/scripts/qemu-lane.sh

skip() {
	echo "1..0 # SKIP $*"
	exit 0
}

fail() {
	echo "not ok 1 - $*"
	echo 1..1
	exit 1
}

# What the guest runs first. The kernel hands variables of its command line on to it.
write_init() {
	cat <<-'INIT'
		#!/bin/busybox sh
		B=/bin/busybox
		$B mount -t proc proc /proc
		$B mount -t sysfs sys /sys
		$B mount -t devtmpfs dev /dev
		/test-kmod
		$B echo "kmod: exit $?"
		$B poweroff -f
	INIT
}

write_initrd() {
	busybox=$("$lane" where tools)/busybox
	mkdir -p "$dir/guest/bin" "$dir/guest/proc" "$dir/guest/sys" "$dir/guest/dev" &&
		cp "$busybox" "$dir/guest/bin/busybox" && cp "$program" "$dir/guest/test-kmod" &&
		cp "$module/kmod/moe_expert.ko" "$dir/importer/moe_importer.ko" "$dir/guest/" && write_init >"$dir/guest/init" &&
		chmod 755 "$dir/guest/init" &&
		(cd "$dir/guest" && find . | "$busybox" cpio -o -H newc 2>"$dir/log") >"$dir/initrd"
}

means_for() {
	case $1 in
	*-cloud) echo 'make check-kmod fetches it (scripts/qemu-lane.sh)' ;;
	*) echo 'make check-kmod-debug builds it (scripts/debug-kernel.sh)' ;;
	esac
}

# build_module KERNEL: once for all tests, with warnings, into the folder $module; what was said is in $module/log.
build_module() {
	built=${MOE_BUILD:-$root/build}/kmod
	sum=$(cd "$root" && cat Kbuild kmod/Kbuild kmod/*.[ch] lib/uapi/moe_kmod.h lib/uapi/moe_ring.h | cksum | tr ' ' -)
	module=$built/$1-$sum
	mkdir -p "$module" || return
	# shellcheck disable=SC2016 # for the shell that flock starts
	flock "$module" sh -c '[ -f "$1/whole" ] || { "$2" -o "$1" "$3" W=1 >"$1/log" 2>&1 && : >"$1/whole"; }' sh \
		"$module" "$root/scripts/kmod.sh" "$("$lane" where "headers-$1")/build" || {
		sed 's/^/# /' "$module/log"
		fail "the module does not build for $1"
	}
}

build_importer() {
	mkdir -p "$dir/importer" && cp "$root"/tests/kmod/importer/* "$dir/importer/" &&
		make -C "$("$lane" where "headers-$1")/build" "M=$dir/importer" CONFIG_DEBUG_INFO_BTF_MODULES= W=1 modules
}

test_kernel() {
	[ -x "$program" ] || skip "$program is not built"
	lacks=$("$lane" missing tools "kernel-$1" "headers-$1" 2>"$dir/log") ||
		skip "no $lacks: $(means_for "$1")"
	build_module "$1"
	cp "$module/log" "$dir/build.log"
	build_importer "$1" >>"$dir/build.log" 2>&1 || {
		sed 's/^/# /' "$dir/build.log"
		fail "the importer does not build for $1"
	}
	# Of the compiler about the module's files, of modpost about symbols; not of make about another compiler's release.
	! grep -E '/(kmod|importer)/.*warning|modpost' "$dir/build.log" | sed 's/^/# /' | grep . ||
		fail "the module does not build for $1 without a warning"
	words="TEST_SEED=${TEST_SEED:-$(date +%s)}"
	[ -z "${TEST_PART-}" ] || words="$words TEST_PART=$TEST_PART"
	words="$words TEST_CYCLES=${TEST_CYCLES:-100} TEST_COMMANDS=${TEST_COMMANDS:-60000}"
	write_initrd || fail "no initrd: $(cat "$dir/log")"
	"$lane" boot --kernel "$1" --initrd "$dir/initrd" --memory 1024 --nodes 2 --limit 600 --console "$dir/console" \
		--append "loglevel=0 hugepagesz=2M hugepages=64 $words"
	code=$?
	tr -d '\r' <"$dir/console" | grep -av '^kmod: exit'
	grep -aq '^kmod: exit 0' "$dir/console" && [ "$code" = 0 ]
}

# A program and the libraries that it is linked with, for the guest: they lie there as here, ours in /lib. Without what
# is for debuggers: the machine has its files in memory, twice while it boots.
add_program() {
	case $1 in
	*.so.*) strip --strip-debug -o "$dir/guest/lib/${1##*/}" "$1" ;;
	*) strip --strip-debug -o "$dir/guest/${1##*/}" "$1" ;;
	esac || return 1
	ldd "$1" | sed -n 's,.*[ \t]\(/[^ ]*\) (0x.*,\1,p' | while read -r library; do
		case $library in
		*/libmoe-expert.so*) to=$dir/guest/lib ;;
		*) to=$dir/guest${library%/*} ;;
		esac
		mkdir -p "$to" && cp -L "$library" "$to/" || exit 1
	done
}

write_daemon_initrd() {
	busybox=$("$lane" where tools)/busybox
	built=${MOE_BUILD:-$root/build}
	mkdir -p "$dir/guest/bin" "$dir/guest/proc" "$dir/guest/sys" "$dir/guest/dev" "$dir/guest/tmp" "$dir/guest/lib" &&
		cp "$busybox" "$dir/guest/bin/busybox" && ln -s busybox "$dir/guest/bin/sh" &&
		cp "$module/kmod/moe_expert.ko" "$dir/guest/" && cp -r "$root/models/tinymoe" "$dir/guest/" && head -c 300 "$root/models/tinymoe/text.txt" >"$dir/guest/text" &&
		cp "$root/tests/kmod/in-guest.sh" "$dir/guest/" && cp "$root/tests/kmod/$guest-in-guest.sh" "$dir/guest/init" &&
		chmod 755 "$dir/guest/init" &&
		for program in $programs; do add_program "$built/$program" || return 1; done &&
		{ [ -z "${bus-}" ] || { add_program "$bus" && cp -r "$root/dbus" "$dir/guest/"; }; } &&
		(cd "$dir/guest" && find . | "$busybox" cpio -o -H newc 2>"$dir/log") >"$dir/initrd"
}

# test_daemon K, test_clients K: the daemon with the module, and clients that ask it through the module, in a machine
# with the kernel K, one node and 40 huge pages of 2 MiB. TEST_CLIENTS: which tests/test-* they are, "session,restart" by
# default; bench is moe-bench ring. What they need beside the daemon comes along.
#
# These are all tests that have a session of a real daemon by the library, or by restart-client.h, and what runs nowhere
# over the module is:
# - test-bus, test-bus-access, test-bus-fuzz: they ask by D-Bus, and of the session beside it want only that it is there;
#   on an emulated CPU the bus puts the daemon out meanwhile;
# - test-attach-refuse, test-engine* and all others of lib/ whose daemon is a thread of theirs: it has no module;
# - raw-client.h's: they write into the ring itself, which a session by the module does not have (test-ring-fuzz,
#   test-adversary, test-cancel, test-fill-*), or speak the socket's protocol before there is a session (test-protocol,
#   test-hostile, test-limits). What the module is asked with hostility is test-kmod's.
test_daemon() {
	guest=daemon
	programs='daemon/moe-expertd tools/moectl tools/moe-worker tests/lessee'
	boot_programs "$1"
}

test_clients() {
	guest=clients
	programs='daemon/moe-expertd tools/moectl tools/moe-bench tools/moe-mkmodel'
	TEST_CLIENTS=${TEST_CLIENTS:-session,restart}
	for client in $(echo "$TEST_CLIENTS" | tr , ' '); do
		case $client in
		bench) continue ;;
		push-fills | registrar) programs="$programs tests/cuda-sim/libcuda.so.1" ;;
		figures) bus=$(command -v dbus-daemon) || skip 'no dbus-daemon: apt-get install dbus-daemon' ;;
		esac
		programs="$programs tests/test-$client"
	done
	boot_programs "$1"
}

boot_programs() {
	for program in $programs; do
		[ -x "${MOE_BUILD:-$root/build}/$program" ] || skip "$program is not built"
	done
	lacks=$("$lane" missing tools "kernel-$1" "headers-$1" 2>"$dir/log") ||
		skip "no $lacks: make check-kmod fetches it (scripts/qemu-lane.sh)"
	build_module "$1"
	write_daemon_initrd || fail "no initrd: $(cat "$dir/log")"
	"$lane" boot --kernel "$1" --initrd "$dir/initrd" --memory 1024 --limit "${TEST_LIMIT:-850}" --console "$dir/console" \
		--append "loglevel=0 hugepagesz=2M hugepages=40 LD_LIBRARY_PATH=/lib TEST_KILLS=${TEST_KILLS:-1}${TEST_CLIENTS:+ TEST_CLIENTS=$TEST_CLIENTS}"
	code=$?
	tr -d '\r' <"$dir/console" | grep -av '^kmod: exit'
	grep -aq '^kmod: exit 0' "$dir/console" && [ "$code" = 0 ]
}

dir=$(mktemp -d "${TMPDIR:-/tmp}/moe-kmod.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
