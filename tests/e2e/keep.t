#!/bin/sh
# SPDX-License-Identifier: MIT
#
# keep - moe-expertd --keep: a daemon that dies is there again, one that dies too often is given up, SIGTERM ends both,
# and SIGUSR2 starts what lies on disk.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

have_proc || skip_all 'needs /proc'

# The program can be exchanged: a copy, as an upgrade does it.
program=$dir/moe-expertd
cp "$expertd" "$program" || exit 1
expertd=$program

child() { ps -o pid= --ppid "$daemon" | tr -d ' '; }

# is_served PROCESS: by another daemon than that one.
is_served() {
	now=$(child)
	[ -n "$now" ] && [ "$now" != "$1" ] &&
		"$moectl" --socket "$socket" models --json >"$dir/models.json" 2>/dev/null &&
		[ "$(json "$dir/models.json" models.0.name)" = tinymoe ]
}

# Its words: exit codes are those of the shell.
has_ended() {
	wait "$daemon"
	code=$?
	forget "$daemon"
}

is_gone() { ! kill -0 "$1" 2>/dev/null; }

# -- death --------------------------------------------------------------------------------------------------------

start_daemon --keep --model "$sample"
require $? 'a keeper, and READY of its daemon' "$dir/daemon.log"
is "$line" READY 'READY comes from the keeper'
first=$(child)
is_served none
ok $? 'the daemon answers'
tr '\0' ' ' <"/proc/$first/cmdline" >"$dir/args"
! grep -q -e --keep -e --ready-fd "$dir/args" && grep -q -e "--model $sample" "$dir/args"
ok $? "it is told all but what is the keeper's" "$dir/args"

kill -9 "$first"
wait_for is_served "$first"
ok $? 'killed, it is there again and answers' "$dir/daemon.log"
grep -q 'died by signal 9 (Killed); it starts again in 0.0 s' "$dir/daemon.log"
ok $? 'the keeper says so' "$dir/daemon.log"

# -- upgrade ------------------------------------------------------------------------------------------------------

second=$(child)
rm "$program"
kill -USR2 "$daemon"
wait_for grep -q 'no upgrade' "$dir/daemon.log"
ok $? 'without a program on disk there is no upgrade' "$dir/daemon.log"
is "$(child)" "$second" 'the running daemon goes on'
cp "$build/daemon/moe-expertd" "$program"
kill -USR2 "$daemon"
wait_for is_served "$second"
ok $? 'SIGUSR2: another daemon answers' "$dir/daemon.log"
is "$(stat -L -c %i "/proc/$(child)/exe")" "$(stat -c %i "$program")" 'it is the program that lies on disk now'

third=$(child)
kill -USR2 "$third"
wait_for is_served "$third"
ok $? 'SIGUSR2 to the daemon itself does the same' "$dir/daemon.log"
is "$(grep -c 'has ended for its upgrade' "$dir/daemon.log")" 2 'and the keeper says so each time'

# -- a socket that somebody has removed ---------------------------------------------------------------------------

rm "$socket"
for turn in 1 2 3; do
	before=$(child)
	kill -9 "$before"
	wait_for is_served "$before"
	ok $? "the socket's file was removed: daemon $turn after that is reached" "$dir/daemon.log"
done

# -- the end ------------------------------------------------------------------------------------------------------

third=$(child)
stop_daemon
is $? 0 'SIGTERM: the keeper ends with 0'
is_gone "$third"
ok $? 'and the daemon is gone'
[ ! -e "$socket" ]
ok $? 'with its socket'

start_daemon --keep --model "$sample"
require $? 'a keeper again' "$dir/daemon.log"
fourth=$(child)
kill -9 "$daemon"
has_ended
wait_for is_gone "$fourth"
ok $? 'the daemon does not outlive its keeper'

start_daemon --keep
require $? 'and one without a model' "$dir/daemon.log"
# Killed as soon as it is there: five deaths in ten seconds.
# shellcheck disable=SC2317 # wait_for calls it
gives_up() {
	process=$(child)
	[ -z "$process" ] || kill -9 "$process" 2>/dev/null
	grep -q 'giving up' "$dir/daemon.log"
}
wait_for gives_up
ok $? 'the daemon dies again and again' "$dir/daemon.log"
has_ended
is $code 1 'after five deaths the keeper ends with 1'
grep -q 'died 5 times in 10 s, now by signal 9 (Killed); giving up' "$dir/daemon.log"
ok $? 'and says why' "$dir/daemon.log"

# -- a keeper with little room ------------------------------------------------------------------------------------

# hold NAME SESSIONS: sessions of that model, until $holder is killed
hold() {
	: >"$dir/hold"
	"$bench" attach --model "$1" --hold "$2" --seconds $patience --daemon "$socket" >"$dir/hold" 2>&1 &
	holder=$!
	started="$started $holder"
	wait_for grep -q attached "$dir/hold"
	ok $? "$2 sessions of $1" "$dir/hold"
}

let_go() {
	kill -9 "$1"
	wait "$1" 2>/dev/null
	forget "$1"
}

unkept() {
	"$moectl" --socket "$socket" status --json >"$dir/status.json" 2>/dev/null
	json "$dir/status.json" sessions_unkept
}

cat >"$dir/narrow" <<END
#!/bin/sh
ulimit -n 134
exec '$program' "\$@"
END
chmod +x "$dir/narrow"
expertd=$dir/narrow
start_daemon --keep --model "$sample"
require $? 'a keeper that has room for 35 descriptors' "$dir/daemon.log"
hold tinymoe 5
crowd=$holder
within "$(unkept)" 1 4 'more sessions than it has room for: some will end with their daemon'
few=$(unkept)
"$moectl" --socket "$socket" load "$sample" --name second >"$dir/out" 2>&1
is $? 0 'a model is loaded all the same'
grep -q 'model second will not outlive this daemon: the keeper does not take it: No space' "$dir/daemon.log"
ok $? 'the log says that it will end with this daemon' "$dir/daemon.log"
hold second 1
is "$(unkept)" $((few + 1)) 'and so will a session of it'
grep -q 'will not outlive this daemon: nor will its model' "$dir/daemon.log"
ok $? 'of which the log says why' "$dir/daemon.log"
let_go "$holder"
let_go "$crowd"
wait_for grep -q 'model second outlives this daemon now' "$dir/daemon.log"
ok $? 'when sessions have made room, the keeper gets the model' "$dir/daemon.log"
hold second 1
is "$(unkept)" 0 'sessions of it are kept from then on'
fifth=$(child)
kill -9 "$fifth"
wait_for is_served "$fifth"
ok $? 'killed, it is there again' "$dir/daemon.log"
is "$(json "$dir/models.json" models.1.name)" second 'with the model'
wait_for have_sessions 1
ok $? 'and its session' "$dir/daemon.log"
let_go "$holder"
stop_daemon
is $? 0 'SIGTERM ends both'
expertd=$program

# -- what cannot begin --------------------------------------------------------------------------------------------

timeout 60 "$expertd" --keep --socket "$socket" --model "$dir/nothing" 2>"$dir/err"
is $? 1 'a model that is not there: the daemon'\''s code, and no second try'
is "$(grep -c nothing "$dir/err")" 1 'in one line' || sed 's/^/#   /' "$dir/err"
timeout 60 "$expertd" --keep --private --socket "$socket" 2>"$dir/err" </dev/null
is $? 2 '--keep with --private is refused'
grep -q -e '--keep with --private: .*leave one of them out' "$dir/err"
ok $? 'with a way out' "$dir/err"
timeout 60 sh -c 'ulimit -n 100 && exec "$@"' sh "$expertd" --keep --socket "$socket" 2>"$dir/err"
is $? 1 'too few file descriptors are an error'
grep -q -e '--keep: 100 file descriptors are allowed, 128 needed (ulimit -Hn)' "$dir/err"
ok $? 'that names the limit' "$dir/err"
finish
