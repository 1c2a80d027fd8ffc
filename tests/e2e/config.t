#!/bin/sh
# SPDX-License-Identifier: MIT
#
# config - a daemon that is configured by files: what it takes from them, what its command line goes before, what SIGHUP
# changes and what it does not, and that moectl reads the same.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

conf=$dir/expertd.conf
log=$dir/daemon.log

# status FIELD: of the daemon that runs.
status() {
	"$moectl" --socket "$socket" status --json >"$dir/status.json" 2>/dev/null && json "$dir/status.json" "$1"
}

# said N TEXT: the log has the line so many times.
# shellcheck disable=SC2317 # wait_for calls it
said() { [ "$(grep -c -e "$2" "$log")" = "$1" ]; }

# reload: SIGHUP, and the daemon's word that it is done.
reloads=0
reload() {
	kill -HUP "$daemon"
	reloads=$((reloads + 1))
	wait_for said $reloads 'reloaded the configuration'
	ok $? "$1" "$log"
}

# -- taken from a file --------------------------------------------------------------------------------------------

cat >"$conf" <<-END
	[Models]
	Model=tiny:$root/$sample
	MemoryMax=2G
	[Pool]
	Threads=1
	Spin=3
	Turbo=yes
	[Limits]
	UidSessions=7
END
start_daemon --config "$conf" --spin 4
require $? 'a daemon that is configured by a file' "$log"
"$moectl" --socket "$socket" models --json >"$dir/models.json"
is "$(json "$dir/models.json" models.0.name)" tiny 'it has loaded the model of the file, under its name'
is "$(status memory_max)" $((2 << 30)) 'and has its limit of memory'
is "$(status cpu.threads)" 1 'its threads' "$dir/status.json"
grep -q "$conf:7: Turbo= is unknown in section \[Pool\]" "$log"
ok $? 'it warns of a key that it does not know' "$log"

# -- reloading ----------------------------------------------------------------------------------------------------

sed -i -e 's/MemoryMax=.*/MemoryMax=3G/' -e 's/Threads=1/Threads=2/' -e 's/Spin=3/Spin=5/' \
	-e 's/UidSessions=7/UidSessions=1/' "$conf"
reload 'SIGHUP: the files are read again'
is "$(status memory_max)" $((3 << 30)) 'the limit of memory has changed'
is "$(status cpu.threads)" 1 'the number of threads has not'
grep -q "MemoryMax=3G ($conf:3), before: 2G" "$log"
ok $? 'the log says what has changed, and where that stands' "$log"
grep -q "Threads=2 ($conf:5) needs a restart; still in force: 1" "$log"
ok $? 'and what needs a restart' "$log"
! grep -q 'Spin=' "$log"
ok $? 'an option goes before the file: it is no change' "$log"
grep -q 'reloaded the configuration: 2 settings changed' "$log"
ok $? 'two have changed' "$log"

echo 'UidFds=lots' >>"$conf"
kill -HUP "$daemon"
wait_for grep -q "reloading: $conf:10: .*everything stays as it was" "$log"
ok $? 'a wrong line is an error that names its place' "$log"
sed -i '$d' "$conf"
for wrong in Daemon.Metrics=70000 Daemon.Metrics=foo Daemon.Bus=foo Daemon.BusName=foo Pool.Isa=sse9; do
	cp "$conf" "$dir/right.conf"
	printf '[%s]\n%s\n' "${wrong%%.*}" "${wrong#*.}" >>"$conf"
	kill -HUP "$daemon"
	wait_for grep -q "reloading: $conf:11: ${wrong#*.}: .* expected.*; everything stays as it was" "$log"
	ok $? "SIGHUP refuses ${wrong#*.}" "$log"
	timeout 60 "$expertd" --socket "$dir/other" --config "$conf" >"$dir/out" 2>&1
	is "$?:$(grep -c "$conf:11: ${wrong#*.}: " "$dir/out")" 2:1 'as a daemon that starts does' "$dir/out"
	"$moectl" config --config "$conf" >"$dir/out" 2>&1
	is "$?:$(grep -c "$conf:11: ${wrong#*.}: " "$dir/out")" 1:1 'and moectl config' "$dir/out"
	"$moectl" --socket "$socket" doctor --config "$conf" >"$dir/out" 2>&1
	is "$?:$(grep -c "^problem *configuration *$conf:11: ${wrong#*.}: " "$dir/out")" 1:1 'and doctor' "$dir/out"
	mv "$dir/right.conf" "$conf"
done
cp "$conf" "$dir/right.conf"
printf '[Models]\nModel=tiny:%s\n' "$dir" >>"$conf"
kill -HUP "$daemon"
wait_for grep -q "reloading: $conf:11: Model=tiny:$dir: the name 'tiny' is that of another model .*$conf:2: .*; everything stays as it was" "$log"
ok $? 'SIGHUP refuses two models of one name' "$log"
timeout 60 "$expertd" --socket "$dir/other" --config "$conf" >"$dir/out" 2>&1
is "$?:$(grep -c "$conf:11: Model=tiny:$dir: the name 'tiny'" "$dir/out")" 1:1 'as a daemon that starts does' "$dir/out"
"$moectl" config --config "$conf" >"$dir/out" 2>&1
is "$?:$(grep -c "$conf:11: Model=tiny:$dir: the name 'tiny'" "$dir/out")" 1:1 'and moectl config' "$dir/out"
mv "$dir/right.conf" "$conf"
sed -i -e '/UidSessions/d' -e 's/MemoryMax=.*/Pages=4k/' "$conf"
reload 'the line is gone, and two settings with it'
is "$(status memory_max)" 0 'what no file says any more has its default'
printf '[Daemon]\nVerbose=yes\n' >>"$conf"
reload 'Verbose=yes'
"$worker" generate --daemon "$socket" --model "$sample" --prompt NAME --tokens 2 >"$dir/out" 2>&1
grep -q attaches "$log"
ok $? 'the log tells more' "$log"
stop_daemon
is $? 0 'SIGTERM ends it'

# -- by the kernel: the terminal is gone --------------------------------------------------------------------------

# gone PROCESS: not even a zombie that nobody has waited for
# shellcheck disable=SC2317 # wait_for calls it
gone() { ! grep -q '^State:[[:space:]]*[^ZX]' "/proc/$1/status" 2>/dev/null; }

if ! command -v script >/dev/null 2>&1 || ! have_proc; then
	skip 'script or /proc is missing: no terminal that could go'
else
	cat >"$dir/at-terminal" <<-END
		#!/bin/sh
		exec "$(realpath "$expertd")" --socket "$socket" --config "$conf" 2>"$log"
	END
	chmod +x "$dir/at-terminal"
	: >"$log"
	script -qefc "$dir/at-terminal" /dev/null >/dev/null 2>&1 </dev/null &
	terminal=$!
	started="$started $terminal"
	wait_for grep -q ' ready: ' "$log"
	require $? 'a daemon on a terminal' "$log"
	at_terminal=$(status pid)
	kill -HUP "$at_terminal"
	wait_for said 1 'reloaded the configuration'
	ok $? 'SIGHUP from a process reloads' "$log"
	kill -9 "$terminal"
	wait "$terminal" 2>/dev/null
	forget "$terminal"
	wait_for grep -q 'Hangup: ending' "$log"
	ok $? 'SIGHUP from the kernel, when the terminal is gone, ends it' "$log"
	wait_for gone "$at_terminal"
	is "$?:$(grep -c 'reloaded the' "$log")" 0:1 'without another reload' "$log"
	[ ! -e "$socket" ]
	ok $? 'and its socket with it'
fi

# -- the same for moectl ------------------------------------------------------------------------------------------

"$moectl" config --config "$conf" --json >"$dir/config.json" 2>"$dir/err"
is $? 0 'moectl config needs no daemon' "$dir/err"
perl -MJSON::PP -e 'local $/; my $c = decode_json(<STDIN>);
	my ($s) = grep { $_->{key} eq "Threads" } @{$c->{settings}};
	print "$s->{value} $s->{from}{kind} $s->{from}{line} $s->{section}";' <"$dir/config.json" >"$dir/threads"
is "$(cat "$dir/threads")" '2 file 5 Pool' 'it says what the daemon would read, and from where'
is "$(json "$dir/config.json" 'warnings.#')" 1 'with the warning'
MOE_EXPERTD_CONFIG=$conf "$moectl" config >"$dir/out" 2>&1
grep -q "^  Threads  *2  *$conf:5\$" "$dir/out"
ok $? 'for a person, too' "$dir/out"
echo '[Nothing' >>"$conf"
"$moectl" config --config "$conf" >"$dir/out" 2>&1
is $? 1 'a wrong file: exit code'
grep -q "$conf:[0-9]*: \[Nothing: ']' is missing" "$dir/out"
ok $? 'and its place' "$dir/out"
timeout 60 "$expertd" --socket "$socket" --config "$conf" >"$dir/out" 2>&1
is $? 2 'a daemon does not start with it'

# -- the sample ---------------------------------------------------------------------------------------------------

# share/expertd.conf, the file that packages put into /etc, says each setting there is with its default, and changes one.
MOE_EXPERTD_CONFIG=share/expertd.conf "$moectl" config --json >"$dir/sample.json" 2>"$dir/err"
is $? 0 'the sample can be read' "$dir/err"
[ ! -s "$dir/err" ]
ok $? 'without warnings' "$dir/err"
sed 's/^#\([A-Z][A-Za-z]*=\)/\1/' share/expertd.conf >"$conf"
"$moectl" config --json --config "$conf" >"$dir/whole.json" 2>"$dir/err"
is $? 0 'and with its comments as settings' "$dir/err"
[ ! -s "$dir/err" ]
ok $? 'as well' "$dir/err"
MOE_EXPERTD_CONFIG=/dev/null "$moectl" config --json >"$dir/nothing.json"
listed() { # FILE: section and key and value of each setting
	perl -MJSON::PP -e 'local $/; print map { my $v = $_->{value} // "";
		"$_->{section} $_->{key} " . (ref $v ? encode_json($v) : $v) . "\n" } @{decode_json(<>)->{settings}}' "$1"
}
listed "$dir/nothing.json" | sed 's/^\(Daemon Bus\) off$/\1 system/' >"$dir/expected"
[ -s "$dir/expected" ]
ok $? 'there are settings'
listed "$dir/sample.json" | diff "$dir/expected" - >"$dir/out"
ok $? 'it changes nothing but the bus' "$dir/out"
listed "$dir/whole.json" | diff "$dir/expected" - >"$dir/out"
ok $? 'the values in its comments are the defaults' "$dir/out"
cut -d ' ' -f 1,2 "$dir/expected" >"$dir/keys"
awk '/^\[/ { gsub(/[][]/, ""); section = $0 } /^[A-Z].*=/ { sub(/=.*/, ""); print section, $0 }' "$conf" |
	diff "$dir/keys" - >"$dir/out"
ok $? 'no setting is missing there, none is unknown' "$dir/out"

# The settings of a command line have names of their own, and the limits of the file's.
"$expertd" --push-patience 3600 --version >"$dir/out" 2>&1
is $? 0 '--push-patience takes seconds' "$dir/out"
"$expertd" --push-patience 0 --version >"$dir/out" 2>&1
is "$?/$(grep -c -e "--push-patience '0': a number from 1 to 3600 expected" "$dir/out")" 2/1 'from 1 on' "$dir/out"

# -- who reads what -----------------------------------------------------------------------------------------------

printf '[Pool]\nThreads=none\n' >"$conf"
MOE_EXPERTD_CONFIG=$conf timeout 60 "$expertd" --socket "$socket" >"$dir/out" 2>&1
is $? 2 "\$MOE_EXPERTD_CONFIG is read" "$dir/out"
mkfifo "$dir/stdin"
exec 4<>"$dir/stdin"
MOE_EXPERTD_CONFIG=$conf "$expertd" --private --socket "$socket" --ready-fd 3 3>"$dir/ready" 2>"$log" <&4 >&2 &
daemon=$!
started="$started $daemon"
read -r line <"$dir/ready"
is "$line" READY 'but not by a private daemon' "$log"
stop_daemon
is $? 0 'which ends'
if have_proc; then
	start_daemon --keep
	require $? 'under a keeper' "$log"
	kill -HUP "$daemon"
	wait_for grep -q 'reloaded the configuration' "$log"
	ok $? 'SIGHUP goes through to the daemon' "$log"
	stop_daemon
	is $? 0 'both end'
fi
# -- a socket that a file names -------------------------------------------------------------------------------------

named=$dir/named
printf '[Daemon]\nSocket=%s\n' "$named" >"$dir/named.conf"
rm -f "$dir/ready"
mkfifo "$dir/ready"
"$expertd" --config "$dir/named.conf" --ready-fd 3 3>"$dir/ready" 2>"$log" >&2 &
daemon=$!
started="$started $daemon"
read -r line <"$dir/ready"
is "$line" READY 'a daemon whose socket a file names' "$log"
for reloads in 1 2; do
	kill -HUP "$daemon"
	wait_for said "$reloads" 'reloaded the configuration'
done
"$moectl" --socket "$named" status >"$dir/out" 2>&1
ok $? 'reloaded twice, it answers there' "$dir/out"
stop_daemon
is $? 0 'it ends'
is "$(ls "$named" "$named.lock" 2>/dev/null)" '' 'and takes the socket with it'
finish
