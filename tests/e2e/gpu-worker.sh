# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154,SC2086 # variables of lib.sh and of who sources this; lists of options
#
# gpu-worker.sh - what e2e/cuda-sim and e2e/cuda both ask of a worker whose attention and router are on the GPU: it scores
# as other ways do, by planned steps and by a captured graph, and a daemon that dies during replays is an error.
#
# $socket is a daemon's that serves the sample with writable weights.

# gpu_score NAME OPTION...: into $dir/score.json
gpu_score() {
	name=$1
	shift
	env ${knobs-} "$worker" score --model "$sample" --text "$dir/some.txt" --json "$@" >"$dir/score.json" 2>"$dir/score.err"
	ok $? "$name: the worker succeeds" "$dir/score.err"
}

# same_score NAME EXPECTED: within 0.1 %, as kernels for devices may pack activations; and all pairs are accounted for.
same_score() {
	within "$(json "$dir/score.json" nll_per_token)" "$(awk -v x="$2" 'BEGIN { printf "%.9f", x * 0.999 }')" \
		"$(awk -v x="$2" 'BEGIN { printf "%.9f", x * 1.001 }')" "$1: nll_per_token is that of --experts local"
	is "$(json "$dir/score.json" dense)" device "$1: attention and router were on the device"
	sum=0
	for path in hit miss_buffer cpu; do
		sum=$((sum + $(json "$dir/score.json" pairs.$path)))
	done
	is $sum $(($(json "$dir/score.json" windows) * $(json "$dir/score.json" window) * 6 * 4)) "$1: all pairs are there"
}

# gpu_scores REPLAYS: at least so many of the captured step.
gpu_scores() {
	cuda="--device cuda --experts cache --slots 8 --fill pull --daemon $socket"
	head -c $(($1 + 256)) $sample/text.txt >"$dir/some.txt"
	gpu_score local --experts local
	all=$(json "$dir/score.json" nll_per_token)
	is "$(json "$dir/score.json" dense)" host 'local: attention and router were on the host'
	gpu_score 'local, a few' --experts local --window 64 --limit 128
	few=$(json "$dir/score.json" nll_per_token)
	for mode in decode prefetch; do
		gpu_score "prefill, $mode" $cuda --mode $mode
		same_score "prefill, $mode" "$all"
	done
	gpu_score 'planned steps' $cuda --decode --window 64 --limit 128
	same_score 'planned steps' "$few"
	is "$(json "$dir/score.json" graph_steps)" 0 'planned steps: none was replayed'
	gpu_score 'a captured graph' $cuda --decode --graph
	same_score 'a captured graph' "$all"
	within "$(json "$dir/score.json" graph_steps)" "$1" 1000000 "a captured graph: replays"
	is "$(json "$dir/score.json" answers)" read 'answers are read in place'
	within "$(json "$dir/score.json" pairs.hit)" 1 1000000000 'a captured graph: the device has computed pairs'
	within "$(json "$dir/score.json" pairs.cpu)" 1 1000000000 'a captured graph: and the CPU pool'
	for way in '' --graph; do
		gpu_score "answers copied first $way" $cuda --decode $way --answers copy --window 64 --limit 128
		same_score "answers copied first $way" "$few"
		is "$(json "$dir/score.json" answers)" copy "answers copied first $way: it says so"
	done
	env ${knobs-} "$worker" generate --model "$sample" $cuda --prompt 'NAME
       expertd - ' --tokens 64 --graph --stats >"$dir/text" 2>"$dir/err"
	ok $? 'generate with a captured graph' "$dir/err"
	grep -q 'adds up' "$dir/text" && grep -q 'dense part *on GPU.*; 63 of 64 steps by a captured graph' "$dir/text"
	ok $? 'it says which way was in force' "$dir/text"
}

# shellcheck disable=SC2317 # wait_for calls it
# The steps before the first replay take less than half of this.
replays() {
	have_sessions 1 && [ "$(json "$dir/sessions.json" sessions.0.requests.compute)" -gt 300 ]
}

# The daemon is gone afterwards.
gpu_death() {
	long_text
	env ${knobs-} "$worker" score --model "$sample" --text "$dir/long.txt" --device cuda --experts cache --slots 4 --fill pull \
		--daemon "$socket" --decode --graph >"$dir/text" 2>"$dir/err" &
	job=$!
	started="$started $job"
	wait_for replays
	ok $? 'a graph is replayed' "$dir/err"
	daemon_dies "$job" "replays"
	is "$(wc -l <"$dir/err")" 1 'replays: in one line' "$dir/err"
	is "$(wc -c <"$dir/text")" 0 'replays: and no score' "$dir/text"
}
