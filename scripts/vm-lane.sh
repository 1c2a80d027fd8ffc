#!/bin/sh
# SPDX-License-Identifier: MIT
#
# vm-lane.sh - installs the packages in a clean Debian 12 with a whole systemd, in a machine of its own, and tests them.
#
#   scripts/vm-lane.sh prepare     once: QEMU, a kernel and a root, about 110 MB, 1 to 3 minutes (needs root)
#   scripts/vm-lane.sh ready       prints why `run` cannot run (exit code 1), or nothing
#   scripts/vm-lane.sh run FOLDER  boots twice with the packages of FOLDER (moe-expertd_*.deb, ...), prints TAP
#
# What `prepare` makes lies below $MOE_QEMU_LANE (default build-qemu-lane in the repository), which can be kept between
# runs: debian-12.img, what it was made of, and the parts of scripts/qemu-lane.sh. `run` downloads nothing; without what
# `prepare` makes it prints one skipped test. What the machine does stands in tests/vm/guest. Its console, and what it wrote, is kept in $MOE_VM_KEEP when that names a folder.
# Exit codes: 0 good or skipped, 1 failed, 2 usage.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
lane=${MOE_QEMU_LANE:-$here/build-qemu-lane}
lane_name=vm-lane
# shellcheck source=scripts/lane.sh
. "$here/scripts/lane.sh"
export MOE_QEMU_LANE="$lane"
limit=${MOE_VM_LIMIT:-600} # seconds for a boot
kernel=6.12-cloud          # needs no initrd
parts="tools kernel-$kernel"

# What the packages depend on, an init, and jq to read what moectl says.
packages=adduser,apt,dbus,jq,kmod,libjansson4,libmicrohttpd12,libncursesw6,libnuma1,libsystemd0,liburing2,libxxhash0
packages=$packages,procps,systemd,systemd-sysv,udev
# What asks at a first boot, or works in the background while something is measured.
masked='systemd-firstboot.service systemd-timesyncd.service serial-getty@ttyS0.service getty@tty1.service
	systemd-machine-id-commit.service systemd-hwdb-update.service systemd-journal-catalog-update.service
	systemd-update-done.service e2scrub_reap.service apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer
	fstrim.timer dpkg-db-backup.timer'
recipe="debian 12, $packages, without $(echo "$masked" | tr -s '\n\t' ' '), 512M, 1"

# -- prepare ------------------------------------------------------------------------------------------------------

image_is_there() { [ -f "$lane/debian-12.img" ] && [ "$(cat "$lane/debian-12.recipe" 2>/dev/null)" = "$recipe" ]; }

# mmdebstrap is a script, and runs where it was unpacked.
make_root() {
	(cd "$lane/debs" && rm -f mmdebstrap*.deb && apt_with apt-get download mmdebstrap >&2) || fail 'apt-get download failed'
	unpack "$lane/mmdebstrap" "$lane"/debs/mmdebstrap*.deb
	say 'making a Debian 12 root'
	rm -rf "$lane/root"
	PATH=$lane/mmdebstrap/usr/bin:$PATH mmdebstrap --variant=essential --include="$packages" \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/man/*' --aptopt='Acquire::Languages "none"' \
		--dpkgopt=force-unsafe-io --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
		bookworm "$lane/root" "$mirror" >"$lane/mmdebstrap.log" 2>&1 ||
		fail "mmdebstrap failed: $(tail -n 1 "$lane/mmdebstrap.log") (all of it: $lane/mmdebstrap.log)"
}

# The packages' manual pages are to be installed, Debian's are not needed.
make_image() {
	etc=$lane/root/etc
	echo moe-guest >"$etc/hostname"
	echo 0123456789abcdef0123456789abcdef >"$etc/machine-id"
	: >"$etc/fstab"
	: >"$etc/apt/sources.list"
	rm -f "$etc"/apt/sources.list.d/* "$etc"/dpkg/dpkg.cfg.d/99mmdebstrap
	for unit in $masked; do
		ln -sf /dev/null "$etc/systemd/system/$unit"
	done
	rm -f "$lane/debian-12.img" "$lane/debian-12.recipe"
	PATH=$PATH:/sbin:/usr/sbin mke2fs -q -t ext4 -O '^has_journal,^metadata_csum' -d "$lane/root" -F \
		"$lane/debian-12.img" 512M >&2 || fail 'mke2fs failed (see above)'
	printf '%s\n' "$recipe" >"$lane/debian-12.recipe"
	rm -rf "$lane/root" "$lane/mmdebstrap"
	say "prepared $lane/debian-12.img"
}

# Only the words of this script, so that they can end up in the reason of a skipped test.
prepare() {
	# Word splitting is meant.
	# shellcheck disable=SC2086
	"$here/scripts/qemu-lane.sh" prepare $parts || return
	image_is_there && return
	[ "$(id -u)" = 0 ] || fail 'prepare: needs root, to make a root file system'
	PATH=$PATH:/sbin:/usr/sbin need_tools mke2fs debugfs perl
	apt_prepare 'deb bookworm main'
	make_root
	make_image
}

# -- run ----------------------------------------------------------------------------------------------------------

ready() {
	# shellcheck disable=SC2086
	"$here/scripts/qemu-lane.sh" missing $parts >/dev/null && image_is_there && return
	echo 'the machine is not prepared: scripts/vm-lane.sh prepare fetches what it is made of'
	return 1
}

# newer FROM TO: the same packages with a higher version, for an upgrade.
newer() {
	for deb in "$1"/*.deb; do
		rm -rf "$dir/deb"
		dpkg-deb -R "$deb" "$dir/deb" || return 1
		version=$(sed -n 's/^Version: //p' "$dir/deb/DEBIAN/control")
		sed -i "s/$version/$version+upgrade/" "$dir/deb/DEBIAN/control" || return 1
		dpkg-deb --root-owner-group -Zgzip -z1 -b "$dir/deb" "$2/" >/dev/null || return 1
	done
}

# copy FROM TO: commands that have debugfs put a folder's files into the image. They get the modes that they have here.
copy() {
	echo "mkdir $2"
	for file in "$1"/*; do
		echo "write $file $2/${file##*/}"
	done
}

make_disk() {
	mkdir "$dir/debs" "$dir/upgrade" || return 1
	cp "$1"/*.deb "$dir/debs/" && rm -f "$dir"/debs/*-dbgsym_* "$dir"/debs/*-dkms_* && newer "$dir/debs" "$dir/upgrade" &&
		cp --sparse=always "$lane/debian-12.img" "$dir/disk" || return 1
	{
		echo 'mkdir /moe'
		copy "$dir/debs" /moe/debs
		copy "$dir/upgrade" /moe/upgrade
		copy "$here/tests/vm/guest" /moe/guest
		copy "$here/models/tinymoe" /srv/tinymoe
		echo "write $here/tests/vm/guest/moe-test.service /etc/systemd/system/moe-test.service"
		echo 'mkdir /etc/systemd/system/multi-user.target.wants'
		echo 'symlink /etc/systemd/system/multi-user.target.wants/moe-test.service ../moe-test.service'
	} >"$dir/commands"
	# It goes on after an error, of which it tells only in words; that a folder is there already is none.
	PATH=$PATH:/sbin:/usr/sbin debugfs -w -f "$dir/commands" "$dir/disk" >"$dir/debugfs.out" 2>"$dir/debugfs.log"
	! grep -v -e '^debugfs [0-9]' -e 'already exists' "$dir/debugfs.log" >&2
}

# boot N: what the guest reports is printed; when it does not come to its end, so is what was seen last.
boot() {
	began=$(date +%s)
	"$here/scripts/qemu-lane.sh" boot --kernel "$kernel" --disk "$dir/disk" --keep --limit "$limit" \
		--append 'systemd.show_status=0 loglevel=4' --console "$dir/console$1" --results "$dir/results$1" &
	running=$!
	wait "$running"
	code=$?
	running=
	cat "$dir/results$1" 2>/dev/null
	[ -z "${MOE_VM_KEEP-}" ] || cp "$dir/console$1" "$dir/results$1" "$MOE_VM_KEEP/"
	echo "# boot $1: $(($(date +%s) - began)) s"
	[ "$code" = 0 ] && grep -q '^# end of boot' "$dir/results$1" && return
	echo "# boot $1 did not come to its end: exit code $code of the machine (124: more than $limit s); its console:"
	tail -n 60 "$dir/console$1" | tr -d '\r' | sed 's/^/#   /'
	exit 1
}

run() {
	[ "$#" = 1 ] || fail 'run: which folder of packages?'
	ls "$1"/moe-expertd_*.deb >/dev/null 2>&1 || fail "run: no moe-expertd_*.deb in $1 (make deb builds it)"
	reason=$(ready) || {
		echo "1..0 # SKIP $reason"
		exit 0
	}
	begin_run moe-vm
	make_disk "$1" || fail "cannot make the machine's disk (see above)"
	boot 1
	grep -q '^1\.\.' "$dir/results1" || boot 2
	! grep -q '^not ok' "$dir"/results?
}

verb=${1-}
[ "$#" = 0 ] || shift
case $verb in
prepare) prepare ;;
ready) ready ;;
run) run "$@" ;;
-h | --help) sed -n '4,15s/^# \{0,1\}//p' "$0" ;;
*)
	say 'which? prepare, ready or run (try --help)'
	exit 2
	;;
esac
