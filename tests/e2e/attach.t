#!/bin/sh
# SPDX-License-Identifier: MIT
#
# attach - a worker attaches to a loaded model in under 50 ms, and as often as it likes. In the best of some rounds: the
# machine may have other things to do; and a sanitizer takes twenty times as long.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

limit_ms=50
[ -z "${MOE_SANITIZED-}" ] || limit_ms=1000

start_daemon --model "$sample"
require $? 'the daemon serves the sample' "$dir/daemon.log"
for round in 1 2 3 4 5; do
	"$bench" attach --samples 100 --daemon "$socket" --json >"$dir/attach.json" 2>"$dir/err"
	require $? "round $round: a hundred times attached and detached" "$dir/err"
	! json "$dir/attach.json" p50_ms | awk -v limit=$limit_ms '{ exit !($1 > limit) }' || continue
	break
done
within "$(json "$dir/attach.json" p50_ms)" 0 $limit_ms 'half of them: milliseconds at most'
echo "# p99 $(json "$dir/attach.json" p99_ms) ms, worst $(json "$dir/attach.json" worst_ms) ms"
wait_for have_sessions 0
ok $? 'no session is left'

stop_daemon
is $? 0 'the daemon ends with 0'
finish
