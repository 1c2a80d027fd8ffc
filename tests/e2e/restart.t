#!/bin/sh
# SPDX-License-Identifier: MIT
#
# restart - workers of the library do not see that their daemon is killed or exchanged: the same score, counters that
# go on, no weights read again.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

have_proc || skip_all 'needs /proc'

child() { ps -o pid= --ppid "$daemon" | tr -d ' '; }

score() { # OPTION...
	"$worker" score --model "$sample" --daemon "$socket" --text "$dir/text" --json "$@"
}

# Kills come at any moment: the keeper counts none of them.
export MOE_CRASH_PLAN=/dev/null
start_daemon --keep --model "$sample"
require $? 'the daemon has a keeper' "$dir/daemon.log"

for experts in cpu cache; do
	# So much text that there is time for some kills, however fast the machine.
	head -c 4000 "$sample/text.txt" >"$dir/text"
	score_for 1000 "$dir/quiet" score --experts $experts
	is $? 0 "$experts: a score, nothing is killed" "$dir/quiet.err"
	kills=0
	score --experts $experts >"$dir/killed" 2>"$dir/killed.err" &
	job=$!
	started="$started $job"
	# On a machine that is slow to start a daemon the worker would come to nothing: it has its peace after 30 kills.
	while kill -0 "$job" 2>/dev/null && [ $kills -lt 30 ]; do
		if [ $((kills % 4)) = 3 ]; then
			kill -USR2 "$daemon"
		else
			kill -9 "$(child)" 2>/dev/null
		fi
		kills=$((kills + 1))
		sleep 0.1
	done
	wait "$job"
	is $? 0 "$experts: a score although its daemon ended $kills times" "$dir/killed.err"
	forget "$job"
	quiet=$(json "$dir/quiet" nll_per_token)
	killed=$(json "$dir/killed" nll_per_token)
	if [ $experts = cpu ]; then
		is "$killed" "$quiet" "$experts: the same score"
	else # which pairs are in the cache when is a matter of time, and sums on the device are others: 1e-5 seen once
		within "$(echo "$killed $quiet" | awk '{ print ($1 - $2) / $2 }')" "-$(slack 1e-5)" "$(slack 1e-5)" \
			"$experts: the same score"
	fi
	within $kills 3 100000 "$experts: the daemon did end"
done

"$moectl" --socket "$socket" status --json >"$dir/status.json"
is "$(json "$dir/status.json" weight_bytes_read)" 0 'no weights were read again'
is "$(json "$dir/status.json" kept)" 1 'the keeper holds them'
is "$(json "$dir/status.json" sessions)" 0 'no session is left'
"$moectl" --socket "$socket" models --json >"$dir/models.json"
is "$(json "$dir/models.json" models.0.leases)" 0 'no lease is left'

stop_daemon
is $? 0 'the daemon ends with 0'
! [ -e "$socket" ]
ok $? 'and its socket is gone'
finish
