#!/bin/sh
# SPDX-License-Identifier: MIT
#
# qemu-lane.sh - fetches QEMU and kernels of Debian 12, and boots them: a machine of which tests may break everything.
#
#   scripts/qemu-lane.sh prepare PART...  once: fetches what is not there yet (tools 17 MB, a kernel 30 MB, headers 15 MB)
#   scripts/qemu-lane.sh missing PART...  prints the first of these parts that is not there (exit code 1), or nothing
#   scripts/qemu-lane.sh where PART       prints the folder of a part
#   scripts/qemu-lane.sh boot OPTION...   runs a machine until it switches itself off
#
# Parts: tools (tools/qemu, a script; tools/busybox, static) and for K one of 6.1-cloud, 6.12-cloud: kernel-K (vmlinuz;
# lib/modules/*) and headers-K (build: for `make -C`; a script of its own, so that it works where it lies).
# K is also 6.12-kasan: scripts/debug-kernel.sh builds both parts at once, from source.
# They lie below $MOE_QEMU_LANE (default build-qemu-lane in the repository), which can be kept between runs; nothing
# else on this machine changes. Needs Debian's apt and archive keyring; apt checks Debian's signatures.
#
# boot: --kernel K, and --initrd FILE or --disk FILE (raw, ext4; a root for kernels that need no initrd: 6.12-cloud);
#   --keep          what the guest writes onto the disk stays (otherwise it is gone)
#   --append WORDS  for the kernel's command line, behind console=ttyS0 panic=-1 quiet and root=
#   --cpu MODEL     max by default: all that QEMU can emulate
#   --memory MIB    2048 by default, --cpus N 2 by default, --nodes N NUMA nodes among which both are split evenly
#   --console FILE  what the guest's serial console shows
#   --results FILE  what the guest writes into /dev/virtio-ports/results
#   --limit S       seconds until it is killed, 300 by default
# It has no network. The CPU is emulated (AVX2, no AVX-512, no AMX), since stock kernels do not boot in all machines
# that offer /dev/kvm. Exit codes: 0 the guest switched itself off, 1 failed, 2 usage, 124 time was up.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
lane=${MOE_QEMU_LANE:-$here/build-qemu-lane}
lane_name=qemu-lane
# shellcheck source=scripts/lane.sh
. "$here/scripts/lane.sh"

# -- parts --------------------------------------------------------------------------------------------------------

# What shows that a part is whole: made last.
mark_of() {
	case $1 in
	tools) echo "$lane/tools/qemu" ;;
	kernel-6.1-cloud | kernel-6.12-cloud) echo "$lane/$1/vmlinuz" ;;
	headers-6.1-cloud | headers-6.12-cloud) echo "$lane/$1/build" ;;
	kernel-6.12-kasan) echo "$lane/$1/vmlinuz" ;;
	headers-6.12-kasan) echo "$lane/kernel-${1#*-}/build" ;;
	*) usage "no part is named $1" ;;
	esac
}

# A QEMU that was kept from another machine may lack libraries on this one.
have() {
	mark=$(mark_of "$1") || exit 2
	[ -e "$mark" ] && { [ "$1" != tools ] || "$mark" --version >/dev/null 2>&1; }
}

release_of() {
	case $1 in
	*-6.1-cloud) echo bookworm ;;
	*) echo bookworm-backports ;;
	esac
}

# download PACKAGE...: by name, since what a kernel's package needs it needs for its installation.
download() {
	(cd "$debs" && apt_with apt-get download "$@" >&2) || fail 'apt-get download failed (see above)'
}

# Bookworm's own QEMU, 7.2, crashes guests now and then; its libraries are those that this system lacks.
prepare_tools() {
	apt_with apt-get -t bookworm-backports -o Dir::Cache::archives="$debs" --download-only --no-install-recommends --yes \
		--reinstall install qemu-system-x86 seabios >&2 || fail 'apt-get install --download-only failed (see above)'
	download busybox-static
	unpack "$lane/tools" "$debs"/*.deb
	mv "$lane/tools/bin/busybox" "$lane/tools/busybox" || exit 1
	cat >"$lane/tools/qemu.new" <<-'SCRIPT' && chmod 755 "$lane/tools/qemu.new"
		#!/bin/sh
		here=$(dirname -- "$0")
		export LD_LIBRARY_PATH="$here/usr/lib/x86_64-linux-gnu:$here/lib/x86_64-linux-gnu"
		exec "$here/usr/bin/qemu-system-x86_64" -L "$here/usr/share/qemu" -L "$here/usr/share/seabios" "$@"
	SCRIPT
	mv "$lane/tools/qemu.new" "$lane/tools/qemu"
	"$lane/tools/qemu" --version >/dev/null || fail 'QEMU does not start here (see above)'
}

prepare_kernel() {
	package=$(apt_meaning linux-image-cloud-amd64 -t "$(release_of "$1")")
	[ -n "$package" ] || fail "apt names no kernel for $1"
	download "$package"
	unpack "$lane/$1" "$debs"/*.deb
	ln -s "boot/vmlinuz-${package#linux-image-}" "$lane/$1/vmlinuz"
}

# The Makefile of a flavour includes that of all flavours by the name that it has when installed.
prepare_headers() {
	package=$(apt_meaning linux-image-cloud-amd64 -t "$(release_of "$1")")
	release=${package#linux-image-}
	version=${release%-cloud-amd64}
	case $1 in
	headers-6.1-cloud) kbuild=linux-kbuild-6.1 ;;
	*) kbuild=linux-kbuild-$version ;;
	esac
	download "linux-headers-$release" "linux-headers-$version-common" "$kbuild"
	unpack "$lane/$1" "$debs"/*.deb
	# shellcheck disable=SC2016 # for make
	sed -i 's,/usr/src/,$(dir $(lastword $(MAKEFILE_LIST)))../,' "$lane/$1/usr/src/linux-headers-$release/Makefile" || exit 1
	ln -s "usr/src/linux-headers-$release" "$lane/$1/build"
}

prepare() {
	[ "$#" -gt 0 ] || usage 'prepare: which parts?'
	parts_missing "$@" >/dev/null && return
	apt_prepare 'deb bookworm main' 'deb bookworm-backports main'
	for part in "$@"; do
		have "$part" && continue
		case $part in
		*-kasan)
			"$here/scripts/debug-kernel.sh" prepare "${part#*-}" || exit 1
			continue
			;;
		esac
		debs=$lane/debs/$part
		rm -rf "$debs"
		mkdir -p "$debs/partial" || exit 1
		case $part in
		tools) prepare_tools ;;
		kernel-*) prepare_kernel "$part" ;;
		headers-*) prepare_headers "$part" ;;
		esac
		rm -rf "$debs"
		have "$part" || fail "$part is not as expected"
		say "prepared $(dirname -- "$(mark_of "$part")")"
	done
}

# -- boot ---------------------------------------------------------------------------------------------------------

# number OPTION VALUE
number() {
	case $2 in
	'' | *[!0-9]* | 0*) usage "boot: $1 $2: a number above 0 is expected" ;;
	esac
}

read_options() {
	kernel='' cpu=max initrd='' disk='' snapshot=on append='' memory=2048 cpus=2 nodes=1 console=/dev/null results='' limit=300
	while [ "$#" -gt 0 ]; do
		[ "$1" = --keep ] || [ "$#" -ge 2 ] || usage "boot: $1 needs a value"
		case $1 in
		--kernel) kernel=$2 ;;
		--initrd) initrd=$2 ;;
		--disk) disk=$2 ;;
		--append) append=$2 ;;
		--cpu) cpu=$2 ;;
		--memory) number "$1" "$2" && memory=$2 ;;
		--cpus) number "$1" "$2" && cpus=$2 ;;
		--nodes) number "$1" "$2" && nodes=$2 ;;
		--console) console=$2 ;;
		--results) results=$2 ;;
		--limit) number "$1" "$2" && limit=$2 ;;
		--keep) snapshot=off ;;
		*) usage "boot: unknown option $1" ;;
		esac
		[ "$1" = --keep ] || shift
		shift
	done
	[ -n "$kernel" ] || usage 'boot: which --kernel?'
	[ -n "$initrd$disk" ] || usage 'boot: --initrd or --disk?'
	for file in "$initrd" "$disk"; do
		[ -z "$file" ] || [ -f "$file" ] || fail "boot: $file is not there"
	done
	[ $((cpus % nodes + memory % nodes)) = 0 ] || usage "boot: $cpus CPUs and $memory MiB are not split evenly by $nodes"
	lacks=$(parts_missing tools "kernel-$kernel") || fail "boot: no $lacks: scripts/qemu-lane.sh prepare $lacks"
}

# The cores of one socket must not be on two nodes.
write_nodes() {
	node=0
	while [ "$node" -lt "$nodes" ]; do
		cat <<-NODE
			[object "memory$node"]
			  qom-type = "memory-backend-ram"
			  size = "$((memory / nodes))M"
			[numa]
			  type = "node"
			  nodeid = "$node"
			  memdev = "memory$node"
		NODE
		node=$((node + 1))
	done
	node=0
	while [ "$node" -lt "$nodes" ]; do
		printf '[numa]\n  type = "cpu"\n  node-id = "%s"\n  socket-id = "%s"\n' "$node" "$node"
		node=$((node + 1))
	done
}

boot() {
	read_options "$@"
	words="console=ttyS0 panic=-1 quiet"
	set -- -nodefaults -no-user-config -no-reboot -display none -accel tcg,thread=multi -machine q35 -cpu "$cpu" \
		-m "${memory}M" -smp "$cpus,sockets=$nodes,cores=$((cpus / nodes))" \
		-serial "file:$console" -kernel "$lane/kernel-$kernel/vmlinuz"
	[ -z "$initrd" ] || set -- "$@" -initrd "$initrd"
	# One disk only: the names of two depend on which is found first.
	[ -z "$disk" ] || {
		words="$words root=/dev/nvme0n1 rw"
		set -- "$@" -drive "if=none,id=disk,file=$disk,format=raw,snapshot=$snapshot,cache=unsafe" \
			-device nvme,id=nvme,serial=moe -device nvme-ns,drive=disk,nsid=1
	}
	[ -z "$results" ] || set -- "$@" -device virtio-serial-pci -chardev "file,id=results,path=$results" \
		-device virtserialport,chardev=results,name=results
	[ "$nodes" = 1 ] || {
		write_nodes >"$console.nodes" || exit 1
		set -- "$@" -readconfig "$console.nodes"
	}
	# In the group of who called: what ends that ends the machine.
	exec timeout --foreground --kill-after=10 "$limit" "$lane/tools/qemu" "$@" -append "$words $append" </dev/null
}

verb=${1-}
[ "$#" = 0 ] || shift
case $verb in
prepare) prepare "$@" ;;
missing) parts_missing "$@" ;;
where) part_where "$@" ;;
boot) boot "$@" ;;
-h | --help) sed -n '4,28s/^# \{0,1\}//p' "$0" ;;
*) usage 'which? prepare, missing, where or boot' ;;
esac
