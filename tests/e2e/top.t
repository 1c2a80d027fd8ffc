#!/bin/sh
# SPDX-License-Identifier: MIT
#
# top - `moectl top` as text: a worker that computes is there with its user, model, phase and rates; without a daemon it
# fails. What it is on a terminal, tests/test-top-screen.c sees.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

start_daemon --model "$sample"
require $? 'the daemon serves the sample' "$dir/daemon.log"
"$moectl" --socket "$socket" top --once --watch=0.05 >"$dir/top" 2>"$dir/err"
ok $? 'top --once' "$dir/err"
grep -q '^no session$' "$dir/top"
ok $? 'nobody is attached' "$dir/top"

long_text
"$worker" score --model "$sample" --experts cache --slots 8 --daemon "$socket" --text "$dir/long.txt" >"$dir/out" 2>"$dir/err" &
scorer=$!
started="$started $scorer"
# Its line: pid, user, model, phase, hit rate, pairs a second from slots, buffers, the pool and the CPU, GB/s, wait.
# shellcheck disable=SC2317 # wait_for calls it
busy() {
	"$moectl" --socket "$socket" top </dev/null >"$dir/top" 2>"$dir/moectl.err" || return 1
	awk -v pid="$scorer" '$1 == pid && $3 == "tinymoe" && $4 == "prefill" && $5 ~ /%$/ && $9 + 0 > 0 && $10 ~ /^[0-9.]+$/ { found = 1 }
		END { exit !found }' "$dir/top"
}
wait_for busy
ok $? 'a worker that computes has rates; input that is no terminal is as --once' "$dir/top"
grep -qE '^node 0 .* [0-9.]+ GB/s computing' "$dir/top"
ok $? 'the node has a bandwidth' "$dir/top"
grep -qE '^tinymoe +1 +[0-9.]+%' "$dir/top"
ok $? 'the model has a session and a hit rate' "$dir/top"
kill "$scorer"
wait "$scorer" 2>/dev/null
forget "$scorer"

stop_daemon
is $? 0 'the daemon ends'
"$moectl" --socket "$socket" top --once >"$dir/top" 2>"$dir/err"
is $? 1 'without a daemon it fails'
grep -q "$socket" "$dir/err"
ok $? 'and names the socket' "$dir/err"
finish
