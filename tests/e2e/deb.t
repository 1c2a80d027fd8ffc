#!/bin/sh
# SPDX-License-Identifier: MIT
#
# deb - the Debian packages: what `make deb` builds is what Debian's rules ask for, holds what `meson install` puts down,
# restarts the daemon on an upgrade without stopping it, and works from there. It stays in build-deb, for tests/vm.
# $MOE_DEBS is a folder with finished ones.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

debs=${MOE_DEBS:-$PWD/build-deb}
for tool in dpkg-buildpackage dh dpkg-deb readelf meson; do
	command -v "$tool" >/dev/null 2>&1 || skip_all "$tool is not installed"
done
if [ -z "${MOE_DEBS-}" ]; then
	dpkg-checkbuilddeps >"$dir/log" 2>&1 || skip_all "$(tail -n 1 "$dir/log")"
	# What is for debuggers takes longest, and then the kernels' loops, whose speed and bits are not what is tested here:
	# those of this build do. One under a sanitizer has none of its own.
	MOE_VECTOR_KERNELS=$([ -n "${MOE_SANITIZED-}" ] || (CDPATH='' cd -- "$build" && pwd))
	export MOE_VECTOR_KERNELS
	DEB_BUILD_OPTIONS='noautodbgsym noopt' DEB_CFLAGS_APPEND='-g0 -O1' scripts/deb.sh --to "$debs" >"$dir/built" 2>"$dir/log"
	require $? 'scripts/deb.sh builds them' "$dir/log"
	ls "$debs"/*.deb >"$dir/found"
	is "$(cat "$dir/built")" "$(cat "$dir/found")" 'and says where they lie'
fi

# -- what is in them ----------------------------------------------------------------------------------------------

packages=$(sed -n 's/^Package: //p' debian/control)
tree=$dir/tree
mkdir "$dir/control"
for package in $packages; do
	deb=$(echo "$debs/$package"_*.deb)
	[ -f "$deb" ]
	require $? "$package is there"
	dpkg-deb -x "$deb" "$tree" && dpkg-deb -e "$deb" "$dir/control/$package"
	require $? "$package can be unpacked"
	dpkg-deb --fsys-tarfile "$deb" | tar -t | grep -v '/$' | sed 's,^\./,,' >"$dir/$package.files"
done

# install_of TREE: its files as those of a prefix of /usr, however they were packed; units lie in /lib or in /usr/lib.
install_of() {
	(cd "$1" && find . ! -type d) | sed -e 's,^\./usr/local/,,' -e 's,^\./usr/,,' -e 's,^\./,,' -e 's,\.gz$,,' |
		grep -v -e '^etc/' -e '^src/' -e '^share/doc/[^/]*/[^/]*$' -e '^share/doc/moe-expertd/decisions/' -e '^share/doc/moe-expertd/json/' \
			-e '^share/doc/.*/examples/expertd.conf$' -e '^share/lintian/' | LC_ALL=C sort
}
DESTDIR=$dir/installed meson install --no-rebuild -C "$build" >"$dir/log" 2>&1
require $? 'meson install, beside them' "$dir/log"
install_of "$dir/installed" >"$dir/expected"
install_of "$tree" | diff "$dir/expected" - >"$dir/out"
ok $? 'all packages together hold what meson install puts down' "$dir/out"
cat "$dir"/*.files | LC_ALL=C sort | uniq -d >"$dir/out"
[ ! -s "$dir/out" ]
ok $? 'no file is in two of them' "$dir/out"

# whole PACKAGE PATTERN NAME: all its files but those of its own below share/doc are such.
whole() {
	grep -v -E -e "$2" -e '^usr/share/(doc|lintian/overrides)/' "$dir/$1.files" >"$dir/out"
	[ ! -s "$dir/out" ]
	ok $? "$1: $3" "$dir/out"
}
whole libmoe-expert1 '^usr/lib/[^/]+/libmoe-expert\.so\.1(\.0\.0)?$' 'the library, so that two versions can lie beside each other'
whole libmoe-expert-dev '^usr/(include/moe-(expert|error)\.h|lib/[^/]+/(libmoe-expert\.(a|so)|pkgconfig/.*)|share/man/man[37]/.*)$' \
	'what a compiler and its user need'
whole moe-expertd-dkms "^usr/src/moe-expert-$(sed -n 's/^PACKAGE_VERSION="\(.*\)"$/\1/p' kmod/dkms.conf)/(Kbuild|dkms\.conf|kmod/(Kbuild|.*\.[ch])|lib/uapi/moe_(kmod|ring)\.h)$|^usr/share/man/man4/" \
	'the source that DKMS builds, by its version, and its page'
sources=$(echo "$tree"/usr/src/moe-expert-*)
for file in Kbuild kmod/Kbuild kmod/*.[ch] lib/uapi/moe_kmod.h lib/uapi/moe_ring.h; do
	cmp "$file" "$sources/$file"
done >"$dir/out" 2>&1
[ ! -s "$dir/out" ] && cmp -s kmod/dkms.conf "$sources/dkms.conf"
ok $? 'all of it' "$dir/out"
whole moe-expertd-doc '^$' 'documents alone'
grep -q '^/etc/moe-expertd/expertd.conf$' "$dir/control/moe-expertd/conffiles"
ok $? 'expertd.conf is a conffile'
cmp -s share/expertd.conf "$tree/etc/moe-expertd/expertd.conf"
ok $? 'and the sample'

grep -rl -F -e "$PWD" -e "$debs" "$tree" >"$dir/out"
[ ! -s "$dir/out" ]
ok $? 'nothing in them names the folder that they were built in' "$dir/out"
find "$tree" -type f -perm /6000 >"$dir/out"
[ ! -s "$dir/out" ]
ok $? 'nothing is setuid' "$dir/out"

if command -v lintian >/dev/null 2>&1; then
	lintian --allow-root --fail-on error,warning "$debs"/*.deb >"$dir/out" 2>&1
	ok $? 'lintian finds no error and no warning' "$dir/out"
else
	skip 'lintian is not installed'
fi

# -- what they need -----------------------------------------------------------------------------------------------

depends() { dpkg-deb -f "$(echo "$debs/$1"_*.deb)" Depends; }
depends moe-expertd | tr ',' '\n' | sed 's/^ //' >"$dir/depends"
for one in 'liburing2 (>= 2.3' 'libsystemd0' 'libnuma1' 'libjansson4' 'libmicrohttpd12' 'libmoe-expert1 (>= '; do
	grep -q -F "$one" "$dir/depends"
	ok $? "moe-expertd depends on $one" "$dir/depends"
done
! grep -q -i -e cuda -e nvidia -e dnnl -e ggml "$dir/depends"
ok $? 'on nothing that is optional' "$dir/depends"
is "$(depends libmoe-expert1 | sed 's/([^)]*)//g; s/ //g')" libc6 'the library depends on the C library alone'

# -- what happens on the way in and out ---------------------------------------------------------------------------

# maintain SCRIPT WORD...: as dpkg would, on a machine of our own: what it calls goes to $dir/calls.
machine=$dir/machine
mkdir -p "$dir/stub" "$machine/run/systemd/system" "$machine/etc/moe-expertd/expertd.conf.d" \
	"$machine/etc/systemd/system/sysinit.target.wants"
for program in deb-systemd-helper deb-systemd-invoke systemd-sysusers systemd-tmpfiles systemctl; do
	{
		echo '#!/bin/sh'
		echo "echo $program \"\$*\" >>$dir/calls"
		echo 'case $* in debian-installed*) exit 1 ;; esac'
		[ $program != systemctl ] || echo 'case $* in *list-units*) echo "moe-expertd@two.service loaded active running" ;; esac'
	} >"$dir/stub/$program"
	chmod +x "$dir/stub/$program"
done
maintain() {
	script=$dir/control/moe-expertd/$1
	shift
	: >"$dir/calls"
	sed -e "s,/run/systemd,$machine/run/systemd,g" -e "s,/etc/,$machine/etc/,g" "$script" >"$dir/script"
	PATH=$dir/stub:$PATH sh "$dir/script" "$@" >"$dir/out" 2>&1
}
# calls PATTERN: how many there were.
calls() { grep -c -e "$1" "$dir/calls"; }

maintain postinst configure ''
is $? 0 'a first installation' "$dir/out"
is "$(calls "^deb-systemd-invoke start 'moe-expertd.service'\|^deb-systemd-invoke start moe-expertd.service")" 1 \
	'starts the daemon' "$dir/calls"
is "$(calls 'deb-systemd-helper enable .*socket')" 0 'the socket is for who asks for it' "$dir/calls"
awk '/sysusers/ { user = NR } /tmpfiles/ { folder = NR } /invoke start/ { start = NR }
	END { exit !(user && user < folder && folder < start) }' "$dir/calls"
ok $? 'first its user, then its folders, then itself' "$dir/calls"

maintain prerm upgrade 9.9
is $? 0 'an upgrade: before' "$dir/out"
is "$(calls stop)" 0 'nothing is stopped: that would give the models up' "$dir/calls"
maintain postinst configure 0.0.1
is $? 0 'an upgrade: after' "$dir/out"
is "$(calls '^deb-systemd-invoke restart .*moe-expertd.service')" 1 'the daemon is restarted' "$dir/calls"
is "$(calls '^deb-systemd-invoke restart moe-expertd@two.service')" 1 'and each other one that runs' "$dir/calls"
is "$(calls ' stop ')" 0 'nothing is stopped' "$dir/calls"
grep -qrx RestartKillSignal=SIGUSR2 "$tree" --include=moe-expertd.service
ok $? 'and a restart leaves what is in the store'

maintain prerm remove
is $? 0 'removing' "$dir/out"
is "$(calls 'invoke stop .*moe-expertd.service')" 1 'stops the daemon' "$dir/calls"
is "$(calls 'invoke stop moe-expertd@two.service')" 1 'and the other one' "$dir/calls"

mkdir -p "$machine/etc/sysctl.d" "$machine/etc/tmpfiles.d" "$machine/etc/security/limits.d" \
	"$machine/etc/systemd/system/moe-expertd.service.d" "$machine/etc/elsewhere"
for file in moe-expertd/hugepages-node0.conf sysctl.d/60-moe-expertd-numa.conf tmpfiles.d/moe-expertd-thp.conf \
	security/limits.d/60-moe-expertd.conf systemd/system/moe-expertd.service.d/60-memlock.conf; do
	echo '# By moectl doctor --fix.' >"$machine/etc/$file"
done
echo PAGES_2M=1 >"$machine/etc/moe-expertd/hugepages-node1.conf"
ln -s ../../elsewhere "$machine/etc/systemd/system/linked.target.wants"
echo '[Daemon]' >"$machine/etc/moe-expertd/two.conf"
ln -s /lib/systemd/system/moe-expertd-hugepages@gone.service \
	"$machine/etc/systemd/system/sysinit.target.wants/moe-expertd-hugepages@0.service"
maintain postrm purge
is $? 0 'purging' "$dir/out"
is "$(cd "$machine/etc" && find . ! -type d | sort | tr '\n' ' ')" \
	'./moe-expertd/hugepages-node1.conf ./moe-expertd/two.conf ./systemd/system/linked.target.wants ' \
	"takes away what was made, and leaves an administrator's" "$dir/out"
[ -e "$machine/etc/systemd/system/moe-expertd.service.d" ]
is $? 1 'with the folder that one was alone in'
rm "$machine/etc/moe-expertd/two.conf" "$machine/etc/moe-expertd/hugepages-node1.conf"
maintain postrm purge
is $? 0 'purging once more' "$dir/out"
[ ! -e "$machine/etc/moe-expertd" ]
ok $? 'an empty folder goes'

# -- at work ------------------------------------------------------------------------------------------------------

LD_LIBRARY_PATH=$(dirname -- "$(find "$tree" -name libmoe-expert.so.1)")
export LD_LIBRARY_PATH
"$tree/usr/bin/moectl" config --root "$tree" >"$dir/out" 2>&1
is $? 0 'the packaged moectl reads the packaged expertd.conf' "$dir/out"
grep -q 'Bus  *system .*expertd.conf:' "$dir/out"
ok $? 'the service is on the bus, and which line says so' "$dir/out"
expertd=$tree/usr/bin/moe-expertd
start_daemon --model "$sample"
require $? 'the packaged daemon serves the sample' "$dir/daemon.log"
"$tree/usr/bin/moectl" --socket "$socket" stats >"$dir/out" 2>&1
ok $? 'moectl stats' "$dir/out"
"$tree/usr/bin/moe-worker" generate --daemon "$socket" --model "$sample" --experts cache --slots 8 --prompt NAME --tokens 16 \
	>"$dir/out" 2>&1
ok $? 'moe-worker' "$dir/out"
stop_daemon
is $? 0 'it ends'
finish
