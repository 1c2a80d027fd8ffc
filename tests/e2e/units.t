#!/bin/sh
# SPDX-License-Identifier: MIT
#
# units - what is installed for systemd: all of it, where it belongs, without a warning of systemd's own checker, and
# with little exposure (systemd-analyze security): 1.0 at most for the CPU unit, 1.5 with the drop-in for GPUs.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

command -v meson >/dev/null 2>&1 || skip_all 'meson is not installed'
tree=$dir/tree
DESTDIR=$tree meson install --no-rebuild -C "$build" >"$dir/log" 2>&1
require $? 'meson install' "$dir/log"

# -- what is there ------------------------------------------------------------------------------------------------

(cd "$tree" && find . -type f) >"$dir/files"
for file in systemd/system/moe-expertd.service systemd/system/moe-expertd.socket systemd/system/moe-expertd@.service \
	systemd/system/moe-expertd@.socket systemd/system/moe-expertd-hugepages@.service sysusers.d/moe-expertd.conf \
	tmpfiles.d/moe-expertd.conf systemd/catalog/moe-expertd.catalog udev/rules.d/60-moe-expert.rules examples/gpu.conf \
	examples/module.conf libexec/moe-expertd-hugepages; do
	[ "$(grep -c "/$file\$" "$dir/files")" = 1 ]
	ok $? "there is one $file" "$dir/files"
done

units=$dir/units
mkdir "$units"
find "$tree" -path '*/systemd/system/*' -type f -exec cp {} "$units" \;
! grep -nE '@[a-z]+@' "$units"/* >"$dir/out"
ok $? 'nothing was left to be filled in' "$dir/out"
program=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$units/moe-expertd.service")
[ -x "$tree$program" ]
ok $? 'ExecStart= names the program where it is installed'
is "$(sed -n 's/^ListenSequentialPacket=//p' "$units/moe-expertd.socket")" \
	"$("$moectl" config --json | perl -MJSON::PP -e 'local $/; print decode_json(<STDIN>)->{settings}[0]{value}')" \
	'the socket unit listens where the daemon does'
grep -q "^FileDescriptorStoreMax=$(sed -n 's/^#define HANDOVER_FDS_MAX \([0-9]*\).*/\1/p' daemon/handover.h)\$" \
	"$units/moe-expertd.service"
ok $? 'the store is as large as that of --keep'

# What hides all devices shows this one: after the unit's own words, which the drop-in's replace.
last() { cat "$units/moe-expertd.service" systemd/module.conf | sed -n "s/^$1=//p" | tail -n 1; }
is "$(sed -n 's/^PrivateDevices=//p' "$units/moe-expertd.service") $(last PrivateDevices)" 'yes no' \
	'the unit hides devices, the drop-in for the module does not'
is "$(last DevicePolicy) $(last DeviceAllow)" \
	"closed $(sed -n 's/^#define MOE_KMOD_DEVICE "\(.*\)"$/\1/p' lib/uapi/moe_kmod.h) rw" \
	"and lets the daemon open the module's alone"
is "/dev/$(sed -n 's/.*KERNEL=="\([^"]*\)".*/\1/p' systemd/60-moe-expert.rules) rw" "$(last DeviceAllow)" \
	'which is the node of the udev rule'
is "$(sed -n 's/.*OWNER="\([^"]*\)".*/\1/p' systemd/60-moe-expert.rules)" "$(last User)" 'that the daemon owns'
! grep -vE '^(#.*|\[Service\]|PrivateDevices=no|DeviceAllow=.*)?$' systemd/module.conf >"$dir/out"
ok $? 'it changes nothing else' "$dir/out"

# -- what systemd says --------------------------------------------------------------------------------------------

# At their places in the tree there is nothing on this machine.
sed -i -e "s,^ExecStart=[^ ]*/moe-expertd\\( \\|\$\\),ExecStart=$(realpath "$expertd")\\1," \
	-e "s,^ExecStart=[^ ]*/moe-expertd-hugepages,ExecStart=$root/systemd/moe-expertd-hugepages," "$units"/*
if ! command -v systemd-analyze >/dev/null 2>&1; then
	skip 'systemd-analyze is not installed'
elif version=$(systemd-analyze --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p') && [ "${version:-0}" -lt 252 ]; then
	skip "systemd-analyze is of version ${version:-unknown}, 252 needed"
else
	for unit in moe-expertd.service moe-expertd.socket moe-expertd@x.service moe-expertd@x.socket \
		moe-expertd-hugepages@0.service; do
		case $unit in *@?.*) cp "$units/$(echo "$unit" | sed 's/@./@/')" "$units/$unit" ;; esac
		SYSTEMD_UNIT_PATH=$units: systemd-analyze verify --man=no "$units/$unit" >"$dir/verify" 2>&1
		# What 254 has brought is known to be unknown before.
		grep "$units" "$dir/verify" |
			grep -vE "Unknown key '(RestartSteps|RestartMaxDelaySec)'" >"$dir/out"
		grep -E "^(moe-expertd|Failed)" "$dir/verify" >>"$dir/out"
		[ "$version" -lt 254 ] || grep 'Unknown key' "$dir/verify" >>"$dir/out"
		[ ! -s "$dir/out" ]
		ok $? "systemd-analyze verify $unit" "$dir/out"
	done

	# exposed LIMIT NAME UNIT: ten times the exposure.
	exposed() {
		systemd-analyze security --no-pager --offline=yes --threshold="$1" "$3" >"$dir/out" 2>&1
		ok $? "$2: $(sed -n 's/.*Overall exposure level for [^:]*: \([0-9.]*\).*/\1/p' "$dir/out")" "$dir/out"
	}
	exposed 10 'exposure of the CPU unit is at most 1.0' "$units/moe-expertd.service"
	exposed 10 'and of an instance' "$units/moe-expertd@x.service"
	mkdir "$dir/gpu"
	cat "$units/moe-expertd.service" systemd/gpu.conf >"$dir/gpu/moe-expertd.service"
	exposed 15 'with the drop-in for GPUs at most 1.5' "$dir/gpu/moe-expertd.service"
	cat "$units/moe-expertd.service" systemd/module.conf >"$dir/gpu/moe-expertd.service"
	exposed 10 'with the drop-in for the kernel module it still is' "$dir/gpu/moe-expertd.service"
	mkdir "$units/moe-expertd.service.d"
	cp systemd/module.conf "$units/moe-expertd.service.d/"
	SYSTEMD_UNIT_PATH=$units: systemd-analyze verify --man=no "$units/moe-expertd.service" 2>&1 |
		grep 'module\.conf' >"$dir/out"
	[ ! -s "$dir/out" ]
	ok $? 'systemd-analyze verify with it has nothing to say' "$dir/out"
	rm -r "$units/moe-expertd.service.d"
	sed -e '/^SystemCallFilter/d' -e '/^Protect/d' "$units/moe-expertd.service" >"$dir/gpu/moe-expertd.service"
	! systemd-analyze security --no-pager --offline=yes --threshold=10 "$dir/gpu/moe-expertd.service" >"$dir/out" 2>&1
	ok $? 'a unit with less would not pass' "$dir/out"
fi

# -- the journal's catalog ----------------------------------------------------------------------------------------

if command -v journalctl >/dev/null 2>&1; then
	mkdir -p "$dir/image/usr/lib/systemd/catalog"
	find "$tree" -name moe-expertd.catalog -exec cp {} "$dir/image/usr/lib/systemd/catalog/" \;
	journalctl --root="$dir/image" --update-catalog >"$dir/out" 2>&1 &&
		journalctl --root="$dir/image" --list-catalog >"$dir/list" 2>>"$dir/out"
	is "$? $(wc -l <"$dir/list") $(wc -c <"$dir/out")" "0 $(grep -c '^-- ' systemd/moe-expertd.catalog) 0" \
		'journalctl reads the catalog' "$dir/out"
else
	skip 'journalctl is not installed'
fi

# -- huge pages ---------------------------------------------------------------------------------------------------

sys=$dir/sys/devices/system/node/node3/hugepages
mkdir -p "$sys/hugepages-2048kB" "$sys/hugepages-1048576kB"
echo 5 >"$sys/hugepages-2048kB/nr_hugepages"
echo 0 >"$sys/hugepages-1048576kB/nr_hugepages"
reserve() { env MOE_SYSFS="$dir/sys" "$@" "$root/systemd/moe-expertd-hugepages" 3 >"$dir/out" 2>&1; }
reserve PAGES_2M=7 PAGES_1G=2
is $? 0 'huge pages are reserved' "$dir/out"
is "$(cat "$sys"/*/nr_hugepages | tr '\n' ' ')" '2 7 ' 'of both sizes'
reserve PAGES_2M=6
is "$(cat "$sys"/*/nr_hugepages | tr '\n' ' ')" '2 7 ' 'none is given back'
reserve PAGES_2M=many
is $? 1 'what is no number is refused'
rm -r "$sys/hugepages-1048576kB"
reserve PAGES_1G=1
is $? 1 'a size that the machine lacks is an error'
grep -q 'node 3: this machine has no pages of 1048576 KiB' "$dir/out"
ok $? 'that says so' "$dir/out"
ln -sf /dev/null "$sys/hugepages-2048kB/nr_hugepages"
reserve PAGES_2M=1
is $? 1 'so is a shortage'
finish
