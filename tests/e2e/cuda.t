#!/bin/sh
# SPDX-License-Identifier: MIT
#
# cuda - a worker on a real GPU scores as the reference says, and a killed daemon is an error, not a hang.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"
# shellcheck source=tests/e2e/gpu-worker.sh
. "$(dirname -- "$0")/gpu-worker.sh"

gpus() { nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep -c .; }
[ "$(gpus)" != 0 ] || skip_all 'no NVIDIA GPU and driver here (nvidia-smi lists none)'

text=$sample/text.txt
start_daemon --model "$sample" --writable-weights
require $? 'the daemon serves the sample' "$dir/daemon.log"
expected=$(json $sample/REFERENCE.json nll_per_token)
for slots in 4 8 32; do
	for mode in decode prefetch full; do
		name="$slots slots, $mode"
		"$worker" score --model "$sample" --text "$text" --json --device cuda --experts cache --slots $slots \
			--mode $mode --fill pull --daemon "$socket" >"$dir/score.json" 2>"$dir/score.err"
		ok $? "$name: the worker succeeds" "$dir/score.err" || continue
		within "$(json "$dir/score.json" nll_per_token)" \
			"$(awk -v x="$expected" 'BEGIN { printf "%.9f", x * 0.999 }')" \
			"$(awk -v x="$expected" 'BEGIN { printf "%.9f", x * 1.001 }')" "$name: nll_per_token is the reference's"
	done
done
gpu_scores 1000

long_text
"$worker" score --model "$sample" --daemon "$socket" --text "$dir/long.txt" --device cuda --experts cache --slots 4 \
	--fill pull >"$dir/text" 2>"$dir/err" &
job=$!
started="$started $job"
wait_for have_sessions 1
ok $? 'a worker is attached' "$dir/err"
sleep 1
daemon_dies "$job" 'a GPU'

start_daemon --model "$sample" --writable-weights
require $? 'a daemon once more' "$dir/daemon.log"
gpu_death
finish
