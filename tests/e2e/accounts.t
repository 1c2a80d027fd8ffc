#!/bin/sh
# SPDX-License-Identifier: MIT
#
# accounts - status shows what each user holds; a limit that a worker meets is in its words, in the log and in status;
# at the end nobody holds anything.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

status() { "$moectl" --socket "$socket" status --json >"$dir/status.json" 2>"$dir/err"; }
user() { status && json "$dir/status.json" "accounts.users.0.$1"; }
# shellcheck disable=SC2317 # wait_for calls it
holds() { [ "$(user "$1")" = "$2" ]; }

# shellcheck disable=SC2317 # likewise
restarted() { status && [ "$(json "$dir/status.json" restarts)" = 1 ]; }

start_daemon --model "$sample" --uid-limit sessions=2 --uid-limit bytes=2G
require $? 'the daemon serves the sample' "$dir/daemon.log"
status
is "$(json "$dir/status.json" accounts.limits.sessions)" 2 'status shows the limit that was given'
is "$(user uid)" "$(id -u)" 'status shows who asks'
is "$(user connections)" 1 'its connection'
is "$(user fds)" 2 'its descriptors'
is "$(user bytes)" 0 'and no bytes'

long_text
for i in 1 2; do
	"$worker" score --model "$sample" --daemon "$socket" --text "$dir/long.txt" --experts cpu >"$dir/text" 2>"$dir/err.$i" &
	started="$started $!"
	wait_for have_sessions $i
	ok $? "worker $i is attached" "$dir/err.$i"
done
pools=$("$moectl" --socket "$socket" models --json | tr ',' '\n' | grep -c '"node"')
is "$(user fds)" $((18 + 2 * pools)) \
	'two workers with a connection and a session each, and moectl: 2 x (2 + 7 + one for each further pool) + 2 descriptors'
ok "$([ "$(user bytes)" -gt 1000000 ]; echo $?)" 'their arenas are counted'
"$worker" score --model "$sample" --daemon "$socket" --text "$sample/text.txt" >"$dir/text" 2>"$dir/err"
is $? 1 'a third worker fails'
grep -q -- "uid $(id -u) has 2 of at most 2 sessions.*--uid-limit sessions=" "$dir/err"
ok $? 'it says what the limit is and how to raise it' "$dir/err"
"$worker" score --model "$sample" --daemon "$socket" --text "$sample/text.txt" >"$dir/text" 2>"$dir/err"
is "$(grep -c 'uid.*sessions' "$dir/daemon.log")" 1 'the log has it once'
is "$(user refused.sessions)" 2 'status counts it'
"$moectl" --socket "$socket" status >"$dir/status" 2>"$dir/err"
grep -q "uid $(id -u) was refused sessions 2 times" "$dir/status"
ok $? 'and says it' "$dir/status"

for process in $started; do
	[ "$process" = "$daemon" ] || { kill -9 "$process" && wait "$process" 2>/dev/null; forget "$process"; }
done
wait_for holds fds 2
ok $? 'when the workers are dead only the connection that asks is left' "$dir/status.json"
for resource in bytes sessions requests leases; do
	is "$(user $resource)" 0 "no $resource"
done
ok "$([ "$(user pool_ns)" -gt 0 ]; echo $?)" 'the time that the pool worked for them stays'

stop_daemon
is $? 0 'the daemon ends with 0: its books balance'

start_daemon --model "$sample" --uid-limit bytes=1M
require $? 'a daemon with little for each user' "$dir/daemon.log"
"$worker" score --model "$sample" --daemon "$socket" --text "$sample/text.txt" >"$dir/text" 2>"$dir/err"
is $? 1 'a worker fails'
grep -q 'data arena: .*--uid-limit bytes=' "$dir/err"
ok $? 'it names the arena and the option' "$dir/err"
stop_daemon
is $? 0 'the daemon ends with 0'

start_daemon --model "$sample" --uid-limit connections=1
require $? 'a daemon with one connection for each user' "$dir/daemon.log"
"$worker" score --model "$sample" --daemon "$socket" --text "$dir/long.txt" >"$dir/text" 2>"$dir/err" &
job=$!
started="$started $job"
# The worker asks on one connection, and works on another one: it fails by itself, or moectl does.
"$moectl" --socket "$socket" status >"$dir/status" 2>"$dir/moectl.err" && wait "$job"
cat "$dir/err" "$dir/moectl.err" >"$dir/errs"
grep -q 'connect: .*--uid-limit connections=' "$dir/errs"
ok $? 'who is turned away is told why' "$dir/errs"
kill "$job" 2>/dev/null
wait "$job" 2>/dev/null
forget "$job"
stop_daemon
is $? 0 'the daemon ends with 0'

# Kills are not counted: the keeper goes on.
MOE_CRASH_PLAN=/dev/null
export MOE_CRASH_PLAN
start_daemon --keep --model "$sample"
require $? 'a daemon with a keeper' "$dir/daemon.log"
"$worker" score --model "$sample" --daemon "$socket" --text "$dir/long.txt" --experts cpu >"$dir/text" 2>"$dir/err" &
job=$!
started="$started $job"
wait_for have_sessions 1
bytes=$(user bytes)
kill -9 "$(ps -o pid= --ppid "$daemon" | tr -d ' ')"
wait_for restarted
ok $? 'it is killed and comes back' "$dir/daemon.log"
is "$(user bytes)" "$bytes" 'the session holds what it held'
is "$(user sessions)" 1 'and is one'
kill -9 "$job"
wait "$job" 2>/dev/null
forget "$job"
wait_for holds bytes 0
ok $? 'all is given back when the worker dies' "$dir/status.json"
stop_daemon
is $? 0 'the daemon ends with 0: the books balance'

"$expertd" --uid-limit cats=9 2>"$dir/err"
is $? 2 'a limit of something else is a wrong command line'
grep -q 'bytes, fds, connections, sessions, requests, leases' "$dir/err"
ok $? 'which names what there is' "$dir/err"
finish
