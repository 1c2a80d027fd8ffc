#!/bin/sh
# SPDX-License-Identifier: MIT
#
# kill - a worker that dies gives everything back at once; a daemon that dies fails its workers at once, with words.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

start_daemon --model "$sample"
require $? 'the daemon serves the sample' "$dir/daemon.log"

work() { # OPTION...: a worker that is busy for a while
	"$worker" score --model "$sample" --daemon "$socket" --text "$dir/long.txt" "$@" >"$dir/text" 2>"$dir/err" &
	job=$!
	started="$started $job"
}

long_text
for experts in cpu cache; do
	work --experts $experts
	wait_for have_sessions 1
	ok $? "$experts: a worker is attached" "$dir/err"
	sleep 0.3
	kill -9 "$job"
	before=$(now_ms)
	wait_for have_sessions 0
	ok $? "$experts: its session is gone $(($(now_ms) - before)) ms after kill -9"
	wait "$job" 2>/dev/null
	forget "$job"
	"$moectl" --socket "$socket" models --json >"$dir/models.json"
	is "$(json "$dir/models.json" models.0.sessions)" 0 "$experts: the model counts no session"
	is "$(json "$dir/models.json" models.0.leases)" 0 "$experts: no lease is left"
done

for experts in cpu cache; do
	work --experts $experts
	wait_for have_sessions 1
	ok $? "$experts: a worker is attached" "$dir/err"
	sleep 0.3
	daemon_dies "$job" "$experts"
	start_daemon --model "$sample"
	require $? 'a new daemon takes the place of the dead one' "$dir/daemon.log"
done

stop_daemon
is $? 0 'the daemon ends with 0'
finish
