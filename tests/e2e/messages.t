#!/bin/sh
# SPDX-License-Identifier: MIT
#
# messages - a daemon whose stderr is the journal sends events with their fields there, and serves on while the journal
# takes nothing, and after it is gone.
#
# The journal is one of our own, in namespaces where /run is empty and queues of datagrams are short.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

if [ -z "${MOE_OWN_RUN-}" ]; then
	[ "$(id -u)" = 0 ] || skip_all 'needs root, for a mount namespace'
	unshare --mount --net mount -t tmpfs tmpfs /run 2>/dev/null || skip_all 'namespaces are forbidden here'
	# shellcheck disable=SC2016
	MOE_OWN_RUN=1 unshare --mount --net sh -c 'mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal &&
		echo 10 >/proc/sys/net/unix/max_dgram_qlen && exec "$0"' "$0"
	exit
fi

# begin_journal: what it gets goes to $dir/journal, a line for each field, an empty one behind each message.
begin_journal() {
	perl -MSocket -e '
		socket(my $in, AF_UNIX, SOCK_DGRAM, 0) or die;
		unlink($ARGV[0]);
		bind($in, pack_sockaddr_un($ARGV[0])) or die;
		open(my $out, ">>", $ARGV[1]) or die;
		$out->autoflush(1);
		open(my $ready, ">", $ARGV[2]);
		close $ready;
		while (defined recv($in, my $message, 65536, 0)) { print $out "$message\n"; }
	' /run/systemd/journal/socket "$dir/journal" "$dir/listens" &
	journal=$!
	started="$started $journal"
	wait_for test -e "$dir/listens"
}

# fields EVENT: of the last message of this name, without those that all have, in one line
# shellcheck disable=SC2317 # wait_for calls it
fields() {
	perl -ne 'BEGIN { $/ = "" } $last = $_ if /^MOE_EVENT=\Q$ENV{EVENT}\E$/m;
		END { exit 1 unless $last;
		print join(" ", sort grep { !/^(?:MESSAGE|MESSAGE_ID|PRIORITY|SYSLOG_IDENTIFIER|MOE_EVENT)=/ } split /\n/, $last), "\n" }' \
		"$dir/journal"
}
# told EVENT PATTERN: has it come, with these fields?
# shellcheck disable=SC2317
told() { EVENT=$1 fields | grep -qE "^$2\$"; }
event() {
	wait_for told "$1" "$2"
	ok $? "$1: $2" "$dir/journal"
}

begin_journal
require $? 'a journal'
conf=$dir/expertd.conf
printf '[Models]\nMemoryMax=2G\n' >"$conf"
: >"$dir/daemon.log"
mkfifo "$dir/ready"
# stderr is what JOURNAL_STREAM says, as if the service manager had made it.
stream=$(stat -c %d:%i "$dir/daemon.log")
JOURNAL_STREAM=$stream "$expertd" --socket "$socket" --config "$conf" --pool-max 12M --ready-fd 3 \
	3>"$dir/ready" 2>"$dir/daemon.log" &
daemon=$!
started="$started $daemon"
read -r line <"$dir/ready"
is "$line" READY 'a daemon whose stderr is the journal' "$dir/journal"
event ready "MOE_COUNT=0 MOE_PATH=$socket"
"$moectl" --socket "$socket" load "$sample" --name tiny >"$dir/out" 2>"$dir/err"
require $? 'a load' "$dir/err"
event loading "MOE_PATH=.*/$sample"
"$moectl" --socket "$socket" models --json >"$dir/models.json"
event loaded "MOE_BYTES=$(json "$dir/models.json" models.0.bytes) MOE_MODEL=tiny MOE_PATH=.*/$sample MOE_USEC=[1-9][0-9]*"
"$moectl" --socket "$socket" load "$dir" --name none >"$dir/out" 2>"$dir/err"
event load-failed "MOE_PATH=$dir MOE_REASON=.*config.json.*"

"$worker" generate --daemon "$socket" --model "$sample" --prompt NAME --tokens 2 >"$dir/out" 2>"$dir/err"
"$moectl" --socket "$socket" set-policy tiny arc >"$dir/out" 2>"$dir/err"
event policy 'MOE_MODEL=tiny MOE_POLICY=arc'
event attached "MOE_MODEL=tiny MOE_PID=[0-9]+ MOE_SESSION=[0-9]+ MOE_UID=0"
event left "MOE_MODEL=tiny MOE_PID=[0-9]+ MOE_SESSION=[0-9]+ MOE_UID=0"
perl -MSocket -e 'socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0) or die; connect($s, pack_sockaddr_un($ARGV[0])) or die;
	send($s, "x" x 7, 0); sysread($s, my $end, 1);' "$socket"
event dropped 'MOE_PID=[0-9]+ MOE_REASON=.+ MOE_SESSION=0 MOE_UID=0'
printf '[Models]\nMemoryMax=3G\n' >"$conf"
kill -HUP "$daemon"
event reloaded MOE_COUNT=1
echo 'MemoryMax=lots' >>"$conf"
kill -HUP "$daemon"
event reload-failed "MOE_REASON=$conf:3: .*"
"$moectl" --socket "$socket" unload tiny >"$dir/out" 2>"$dir/err"
event unloaded MOE_MODEL=tiny
grep -q '^MESSAGE=MemoryMax=3G' "$dir/journal"
ok $? 'other lines come there as well' "$dir/journal"
is "$(grep -c '^MESSAGE=' "$dir/journal")" \
	"$(grep -c '^PRIORITY=[3-7]' "$dir/journal")" 'each line with its priority' "$dir/journal"
is "$(wc -c <"$dir/daemon.log")" 0 'and nothing goes to stderr' "$dir/daemon.log"

# A journal that reads nothing: the daemon says more than it takes, and goes on.
kill -STOP "$journal"
done_rounds=0
for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	"$moectl" --socket "$socket" load "$sample" --name tiny >"$dir/out" 2>"$dir/err" || break
	"$moectl" --socket "$socket" unload tiny >"$dir/out" 2>"$dir/err" || break
	done_rounds=$round
done
is "$done_rounds" 20 'while the journal takes nothing the daemon serves on' "$dir/err"
kill -CONT "$journal"
# shellcheck disable=SC2317
unloaded_again() { [ "$(grep -c '^MOE_EVENT=unloaded' "$dir/journal")" -gt 1 ]; }
wait_for unloaded_again
"$moectl" --socket "$socket" load "$sample" --name tiny >"$dir/out" 2>"$dir/err"
wait_for grep -q 'lines are missing here' "$dir/journal"
ok $? 'and how many lines are missing is told' "$dir/journal"

kill "$journal"
wait "$journal" 2>/dev/null
forget "$journal"
"$moectl" --socket "$socket" unload tiny >"$dir/out" 2>"$dir/err"
is $? 0 'so it does without a journal' "$dir/err"
grep -q '^<6>model tiny unloaded' "$dir/daemon.log"
ok $? 'and then says it on stderr' "$dir/daemon.log"
rm -f "$dir/listens"
begin_journal
require $? 'the next journal'

# A client that comes 400 times: how often is told in a sum. A journal as slow as this one may miss some.
: >"$dir/journal"
perl -MSocket -e 'for (1 .. 400) { socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0) or die; connect($s, pack_sockaddr_un($ARGV[0])) or die;
	send($s, "x" x 7, 0); sysread($s, my $end, 1); }' "$socket"
# shellcheck disable=SC2317
all_dropped() {
	[ "$(perl -ne 'BEGIN { $/ = "" } $n++ if /^MOE_EVENT=dropped$/m; $n += $1 if /^MESSAGE=(\d+) lines are missing here/m;
		$n += $1 if /^MOE_REASON=dropped$/m && /^MOE_COUNT=(\d+)$/m; END { print $n // 0, "\n" }' "$dir/journal")" = 400 ]
}
wait_for all_dropped
ok $? 'of 400 dropped clients all are counted' "$dir/journal"
event summed 'MOE_COUNT=[1-9][0-9]* MOE_REASON=dropped'
kill "$daemon"
wait "$daemon"
is $? 0 'the daemon ends'
forget "$daemon"
event ending 'MOE_REASON=Terminated'
finish
