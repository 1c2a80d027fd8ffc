#!/bin/sh
# SPDX-License-Identifier: MIT
#
# amx-lane.sh - runs a program on a CPU with AMX where there is none: under Linux in Bochs, a PC emulator.
#
#   scripts/amx-lane.sh prepare              once: fetches and builds what a run needs (about 35 MB, 1 to 5 minutes)
#   scripts/amx-lane.sh run PROGRAM [N=V...] boots, runs a static TAP program with these variables set, prints its output
#
# What `prepare` makes lies below $MOE_AMX_LANE (default build-amx-lane in the repository); nothing else on this machine
# changes. It needs Debian's apt and archive keyring, a C++ compiler and make; the source of Bochs 3.0 comes from Debian
# 13, a kernel, busybox, isolinux and xorriso from Debian 12, each checked by apt against Debian's signatures. `run`
# downloads nothing: without what `prepare` makes it prints one skipped test. Exit codes: 0 good or skipped, 1 failed,
# 2 usage.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
lane=${MOE_AMX_LANE:-$here/build-amx-lane}
limit=${MOE_AMX_LIMIT:-900} # seconds for a run

lane_name=amx-lane
# shellcheck source=scripts/lane.sh
. "$here/scripts/lane.sh"

# -- prepare ------------------------------------------------------------------------------------------------------

fetch() {
	kernel=$(apt_meaning linux-image-cloud-amd64)
	[ -n "$kernel" ] || fail 'apt names no kernel for linux-image-cloud-amd64'
	cd "$lane/debs" || exit 1
	rm -f ./*.deb
	apt_with apt-get download "$kernel" bochsbios vgabios busybox-static isolinux syslinux-common xorriso libisoburn1 \
		libisofs6 libburn4 libjte2 || fail 'apt-get download failed (see above)'
	unpack "$lane/root" ./*.deb
	cd "$lane" || exit 1
	apt_with apt-get source --download-only --tar-only bochs || fail 'apt-get source failed (see above)'
}

build() {
	say 'building Bochs'
	rm -rf "$lane/bochs-3.0"
	tar -xf "$lane"/bochs_3.0*.orig.tar.* || fail 'cannot unpack the source of Bochs'
	cd "$lane/bochs-3.0" || fail 'the source of Bochs is not as expected'
	patch -s -p1 <"$here/tests/amx/bochs-3.0.patch" || fail 'the patch does not fit the source of Bochs'
	{
		./configure --with-nogui --enable-cpu-level=6 --enable-x86-64 --enable-avx --enable-evex --enable-amx \
			--enable-cet --enable-protection-keys --enable-uintr --enable-long-phy-address \
			--enable-repeat-speedups --enable-fast-function-calls --enable-handlers-chaining \
			--enable-trace-linking --disable-docbook --disable-readline CXXFLAGS='-O2 -DNDEBUG' &&
			make -j"$(nproc)"
	} >"$lane/build.log" 2>&1 || fail "building Bochs failed: $(tail -n 1 "$lane/build.log") (all of it: $lane/build.log)"
	cp bochs "$lane/bochs" || exit 1
	rm -rf "$lane/bochs-3.0"
	say "prepared in $lane"
}

prepare() {
	need_tools patch make g++ tar
	apt_prepare 'deb bookworm main' 'deb-src trixie main'
	fetch
	build
}

# -- run ----------------------------------------------------------------------------------------------------------

missing() {
	for part in bochs root/bin/busybox root/usr/bin/xorriso root/usr/share/bochs/BIOS-bochs-latest; do
		[ -e "$lane/$part" ] || {
			echo "$lane/$part"
			return
		}
	done
}

# What the guest runs first. The kernel hands variables of its command line on to it.
write_init() {
	cat <<-'INIT'
		#!/bin/busybox sh
		B=/bin/busybox
		$B mount -t proc proc /proc
		$B mount -t devtmpfs dev /dev
		/program
		$B echo "amx-lane: exit $?"
		$B sleep 1
		$B poweroff -f
	INIT
}

# write_iso PROGRAM [VARIABLE...]
write_iso() {
	program=$1
	shift
	mkdir -p "$dir/guest/bin" "$dir/guest/proc" "$dir/guest/dev" "$dir/iso/isolinux" &&
		cp "$lane/root/bin/busybox" "$dir/guest/bin/" && cp "$program" "$dir/guest/program" &&
		write_init >"$dir/guest/init" && chmod 755 "$dir/guest/init" "$dir/guest/program" &&
		(cd "$dir/guest" && find . | "$lane/root/bin/busybox" cpio -o -H newc 2>/dev/null) >"$dir/iso/initrd" &&
		cp "$lane"/root/boot/vmlinuz-* "$dir/iso/vmlinuz" &&
		cp "$lane/root/usr/lib/ISOLINUX/isolinux.bin" \
			"$lane/root/usr/lib/syslinux/modules/bios/ldlinux.c32" "$dir/iso/isolinux/" || return 1
	# A kernel that uses FSRM does not boot in Bochs.
	printf 'default l\nprompt 0\ntimeout 0\nlabel l\n kernel /vmlinuz\n initrd /initrd\n append %s\n' \
		"console=ttyS0 panic=-1 quiet loglevel=0 mitigations=off clearcpuid=fsrm no5lvl $*" >"$dir/iso/isolinux/isolinux.cfg"
	LD_LIBRARY_PATH=$lane/root/usr/lib/x86_64-linux-gnu "$lane/root/usr/bin/xorriso" -as mkisofs -quiet \
		-o "$dir/boot.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4 \
		-boot-info-table "$dir/iso" >"$dir/xorriso.log" 2>&1
}

write_config() {
	cat <<-CONFIG
		config_interface: textconfig
		display_library: nogui
		memory: guest=512, host=512
		romimage: file=$lane/root/usr/share/bochs/BIOS-bochs-latest
		vgaromimage: file=$lane/root/usr/share/vgabios/vgabios.bin
		cpu: model=sapphire_rapids, count=1, ips=100000000, reset_on_triple_fault=0
		ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
		ata0-master: type=cdrom, path=$dir/boot.iso, status=inserted
		boot: cdrom
		com1: enabled=1, mode=file, dev=$dir/serial
		log: $dir/bochs.log
		clock: sync=none
		pci: enabled=1, chipset=i440fx
		panic: action=fatal
		error: action=report
		info: action=ignore
		debug: action=ignore
	CONFIG
}

# Until the guest says that the program has ended, or the emulator ends, or time is up.
wait_for_end() {
	seconds=0
	while kill -0 "$running" 2>/dev/null && ! grep -aq "^amx-lane: exit" "$dir/serial" 2>/dev/null; do
		[ "$seconds" -lt "$limit" ] || break
		sleep 1
		seconds=$((seconds + 1))
	done
}

run() {
	[ "$#" -ge 1 ] || fail 'run: which program?'
	[ -f "$1" ] || fail "run: $1 is not there (make check-amx builds it)"
	lacks=$(missing)
	if [ -n "$lacks" ]; then
		echo "1..0 # SKIP the emulator is not prepared: no $lacks; scripts/amx-lane.sh prepare fetches and builds it"
		exit 0
	fi
	begin_run moe-amx
	write_iso "$@" || fail "cannot make the guest's disc: $(tail -n 1 "$dir/xorriso.log" 2>/dev/null)"
	write_config >"$dir/bochsrc"
	: >"$dir/serial"
	"$lane/bochs" -q -f "$dir/bochsrc" </dev/null >"$dir/out" 2>&1 &
	running=$!
	wait_for_end
	tr -d '\r' <"$dir/serial" 2>/dev/null | grep -av "^amx-lane: exit"
	code=$(tr -d '\r' <"$dir/serial" | sed -n 's/^amx-lane: exit //p' | tail -n 1)
	[ -n "$code" ] || {
		tail -n 5 "$dir/bochs.log" >&2
		fail "the program did not end within $limit s, or the emulator did ($seconds s)"
	}
	say "$seconds s in the emulator"
	[ "$code" = 0 ]
}

case ${1-} in
prepare)
	prepare
	;;
run)
	shift
	run "$@"
	;;
-h | --help)
	sed -n '4,15s/^# \{0,1\}//p' "$0"
	;;
*)
	say "which? prepare or run (try --help)"
	exit 2
	;;
esac
