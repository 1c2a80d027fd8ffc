#!/bin/sh
# SPDX-License-Identifier: MIT
#
# defer - what the approximate mode does to the score: nothing when it is off, a bounded amount when it is on, the same
# amount with any number of threads; each deferred pair is counted; whoever dies on the way leaves nothing.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

layers=$(json $sample/config.json num_hidden_layers)
topk=$(json $sample/config.json num_experts_per_tok)
windows=$(amount 8)

# score NAME OPTION...: writes $dir/score.json
score() {
	name=$1
	shift
	"$worker" score --model "$sample" --text $sample/text.txt --limit $((windows * 256)) --decode --json "$@" \
		>"$dir/score.json" 2>"$dir/score.err"
	require $? "$name: the worker succeeds" "$dir/score.err"
	nll=$(json "$dir/score.json" nll_per_token)
}

# pairs_are EXPECTED NAME: so many were deferred, and all add up.
pairs_are() {
	is "$(json "$dir/score.json" pairs.deferred)" "$1" "$2: the deferred pairs are counted"
	sum=0
	for path in hit miss_buffer cpu deferred local; do
		sum=$((sum + $(json "$dir/score.json" pairs.$path)))
	done
	is $sum $((windows * 256 * layers * topk)) "$2: the paths add up to tokens x layers x top-k"
}

score 'baseline' --experts cpu --threads 1
baseline=$nll
score 'off' --experts cpu --threads 2 --defer 0
is "$nll" "$baseline" 'off: the score is exactly that without the option'
is "$(json "$dir/score.json" approximate)" 0 'off: not approximate'
pairs_are 0 'off'

# The bounds: three times what was measured on this model with twice as many tokens, rounded up, relative to the
# baseline. The last layer defers nothing.
while read -r defer bound; do
	score "defer $defer" --experts cpu --threads 1 --defer "$defer"
	difference=$(awk -v x="$nll" -v b="$baseline" 'BEGIN { printf "%.6f", 100 * (x - b) / b }')
	echo "# defer $defer of $topk: nll_per_token $nll, $difference % from $baseline"
	within "${difference#-}" 0.000001 "$(slack "$bound")" "defer $defer: the score moves, by at most $bound %"
	is "$(json "$dir/score.json" approximate)" 1 "defer $defer: approximate"
	pairs_are $((windows * 256 * (layers - 1) * defer)) "defer $defer"
	[ "$defer" = 1 ] && first=$nll
done <<END
1 0.5
2 2
3 6
END

score 'two threads' --experts cpu --threads 2 --defer 1
is "$nll" "$first" 'two threads: the same bits'
for share in part group; do
	score "two ranks, $share" --experts cpu --tp 2 --share $share --defer 1
	within "$nll" "$(awk -v x="$first" -v e="$(slack 0.001)" 'BEGIN { print x * (1 - e) }')" \
		"$(awk -v x="$first" -v e="$(slack 0.001)" 'BEGIN { print x * (1 + e) }')" \
		"two ranks, $share: the score of one"
	pairs_are $((windows * 256 * (layers - 1))) "two ranks, $share"
done

score 'cache' --experts cache --defer 1
deferred=$(json "$dir/score.json" pairs.deferred)
within "$deferred" 1 $((windows * 256 * (layers - 1) - 1)) 'cache: what the slots hold does not wait'
pairs_are "$deferred" 'cache'
within "$nll" "$(awk -v x="$baseline" -v e="$(slack 0.005)" 'BEGIN { print x * (1 - e) }')" \
	"$(awk -v x="$baseline" -v e="$(slack 0.005)" 'BEGIN { print x * (1 + e) }')" \
	'cache: the score stays within the same bound'

"$worker" generate --model "$sample" --prompt 'NAME' --tokens 20 --experts cpu --defer 1 --json >"$dir/score.json" 2>"$dir/err"
ok $? 'generate' "$dir/err"
is "$(json "$dir/score.json" pairs.deferred)" $(($(json "$dir/score.json" decode_tokens) * (layers - 1))) \
	'generate: nothing of the prompt waits'
"$worker" generate --model "$sample" --prompt 'NAME' --tokens 20 --experts cpu --defer 1 --stats >"$dir/text" 2>"$dir/err"
grep -q 'APPROXIMATE' "$dir/text"
ok $? 'the table says that it is approximate' "$dir/text"
"$worker" generate --model "$sample" --prompt 'NAME' --tokens 20 --experts cpu --stats >"$dir/text" 2>"$dir/err"
! grep -q -e 'APPROXIMATE' -e 'deferred' "$dir/text"
ok $? 'and does not without it' "$dir/text"

# -- refusals -----------------------------------------------------------------------------------------------------

refused() { # CODE WORDS OPTION...
	code=$1
	words=$2
	shift 2
	"$worker" "$@" --model "$sample" >"$dir/text" 2>"$dir/err"
	is $? "$code" "refused: $*"
	grep -q -e "$words" "$dir/err"
	ok $? "$words" "$dir/err"
}

refused 2 'needs --decode' score --text $sample/text.txt --defer 1
refused 2 'cpu or cache' generate --prompt NAME --experts local --defer 1
refused 2 'not an option of generate' generate --prompt NAME --decode
refused 1 'at most 3' generate --prompt NAME --defer "$topk"

# -- deaths -------------------------------------------------------------------------------------------------------

start_daemon --model "$sample"
require $? 'the daemon serves the sample' "$dir/daemon.log"
long_text

work() {
	"$worker" score --model "$sample" --daemon "$socket" --text "$dir/long.txt" --decode --defer 2 >"$dir/text" 2>"$dir/err" &
	job=$!
	started="$started $job"
	wait_for have_sessions 1
	ok $? 'a worker is attached' "$dir/err"
	sleep 0.3
}

work
kill -9 "$job"
wait_for have_sessions 0
ok $? 'its session is gone after kill -9'
wait "$job" 2>/dev/null
forget "$job"
"$moectl" --socket "$socket" models --json >"$dir/models.json"
is "$(json "$dir/models.json" models.0.leases)" 0 'no lease is left'

work
daemon_dies "$job" 'deferring'
finish
