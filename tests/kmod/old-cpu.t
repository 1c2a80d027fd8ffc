#!/bin/sh
# SPDX-License-Identifier: MIT
#
# old-cpu - on a CPU without AVX2 each program says what it needs, and ends with 77; not by SIGILL.
# shellcheck source=tests/kmod/in-qemu.sh
. "${0%/*}/in-qemu.sh"

programs='daemon/moe-expertd tools/moectl tools/moe-bench tools/moe-worker tools/moe-mkmodel'
for program in $programs; do
	[ -x "${MOE_BUILD:-$root/build}/$program" ] || skip "$program is not built"
done
lacks=$("$lane" missing tools kernel-6.12-cloud 2>"$dir/log") || skip "no $lacks: $(means_for 6.12-cloud)"

busybox=$("$lane" where tools)/busybox
mkdir -p "$dir/guest/bin" "$dir/guest/dev" "$dir/guest/lib" && cp "$busybox" "$dir/guest/bin/busybox" || exit 1
for program in $programs; do
	add_program "${MOE_BUILD:-$root/build}/$program" || fail "no $program for the guest"
done
cat >"$dir/guest/init" <<'INIT'
#!/bin/busybox sh
B=/bin/busybox
$B mount -t devtmpfs dev /dev
count=0
for program in moe-expertd moectl moe-bench moe-worker moe-mkmodel; do
	count=$((count + 1))
	said=$(/$program --version 2>&1)
	code=$?
	case "$code $said" in
	"77 $program: needs a CPU with AVX2"*) $B echo "ok $count - $program: $said" ;;
	*) $B echo "not ok $count - $program ends with $code: $said" ;;
	esac
done
$B echo "1..$count"
$B poweroff -f
INIT
chmod 755 "$dir/guest/init"
(cd "$dir/guest" && find . | "$busybox" cpio -o -H newc 2>"$dir/log") >"$dir/initrd" || fail "no initrd: $(cat "$dir/log")"
"$lane" boot --kernel 6.12-cloud --cpu max,-avx2 --initrd "$dir/initrd" --memory 512 --cpus 1 --limit 300 \
	--console "$dir/console" --append 'loglevel=0 LD_LIBRARY_PATH=/lib' || fail "the machine ended with $?"
tr -d '\r' <"$dir/console" | grep -a -e '^ok' -e '^not ok' -e '^1\.\.' || {
	echo 'the machine has ended and said nothing; its console:' >&2
	tail -n 30 "$dir/console" >&2
	exit 1
}
