#!/bin/sh
# SPDX-License-Identifier: MIT
#
# shared - two models and eight sessions that compute at once share one pool: no thread more than one session makes do
# with, no two on a core, and each session gets the result that it gets alone.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

have_proc || skip_all 'no /proc here: threads cannot be counted'

# Names of the daemon's own threads; the kernel's workers for io_uring are not ours.
threads() { cat "/proc/$daemon"/task/*/comm 2>/dev/null | grep -v '^iou-' | sort; }

# shellcheck disable=SC2317 # wait_for calls it
has_loaded() { ! threads | grep -q -e moe-load -e moe-read; }

# Of the pool's threads: the CPUs that each may run on.
cpus_of_pool() {
	for task in "/proc/$daemon"/task/*; do
		grep -q '^moe-pool/' "$task/comm" 2>/dev/null && sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "$task/status"
	done
}

# score MODEL WINDOW OUT: two windows ask for 256 and for 16 tokens at a time
score() {
	case $1 in
	first) folder=$sample ;;
	second) folder=$dir/second ;;
	esac
	exec "$worker" score --model "$folder" --text "$dir/long.txt" --experts cpu --window "$2" --limit "$(amount 24576)" \
		--daemon "$socket" --json >"$3.json" 2>"$3.err"
}

long_text
"$mkmodel" --family qwen3_moe --seed 3 --out "$dir/second" >"$dir/mkmodel.log" 2>&1
require $? 'a second model is made' "$dir/mkmodel.log"
start_daemon --model "$sample" --model "$dir/second"
require $? 'the daemon serves two models' "$dir/daemon.log"
wait_for has_loaded
ok $? 'what loading started has ended'
threads >"$dir/before"

for model in first second; do
	for window in 256 16; do
		(score $model $window "$dir/alone-$model-$window")
		require $? "$model, $window tokens at a time: alone" "$dir/alone-$model-$window.err"
	done
done

workers=
for model in first second; do
	for window in 256 16; do
		for copy in 1 2; do
			(score $model $window "$dir/$copy-$model-$window") &
			workers="$workers $!"
			started="$started $!"
		done
	done
done
wait_for have_sessions 8
ok $? 'eight sessions at once' "$dir/moectl.err"
: >"$dir/strange"
looks=0
while [ "$looks" -lt 5 ]; do
	threads | cmp -s - "$dir/before" || threads >>"$dir/strange"
	cpus_of_pool >"$dir/cpus"
	have_sessions 8 || break # where a look takes long, some have ended in the midst of the later ones
	looks=$((looks + 1))
done
[ ! -s "$dir/strange" ]
ok $? 'no thread more or less than without sessions' "$dir/strange"
"$moectl" --socket "$socket" status --json >"$dir/status.json" 2>"$dir/moectl.err"
ok "$([ "$looks" -gt 0 ]; echo $?)" 'all of them still at it' "$dir/sessions.json"

is "$(json "$dir/status.json" models)" 2 'both models are there'
is "$(wc -l <"$dir/cpus")" "$(json "$dir/status.json" cpu.threads)" 'the threads of the pool are those that status names'
within "$(wc -l <"$dir/cpus")" 1 "$(nproc)" 'as many as there are CPUs, at most'
is "$(grep -c '[-,]' "$dir/cpus")" 0 'each is bound to one CPU'
is "$(sort -u "$dir/cpus" | wc -l)" "$(wc -l <"$dir/cpus")" 'no two of them to the same'

wait_for_all "$workers"
is $bad 0 'all eight are served'
for model in first second; do
	for window in 256 16; do
		for copy in 1 2; do
			is "$(json "$dir/$copy-$model-$window.json" nll_per_token)" \
				"$(json "$dir/alone-$model-$window.json" nll_per_token)" \
				"$model, $window tokens at a time, $copy: bit for bit as alone"
		done
	done
done

stop_daemon
is $? 0 'the daemon ends with 0'
finish
