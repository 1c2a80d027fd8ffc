#!/bin/sh
# SPDX-License-Identifier: MIT
#
# push-cuda - a daemon that pushes into slots in the memory of a simulated GPU: workers score as on the host; whoever is
# killed leaves nothing behind; a GPU that hangs costs its sessions and nobody else anything.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

[ -e "$build/tests/cuda-sim/libcuda.so.1" ] || skip_all 'built without CUDA'
LD_LIBRARY_PATH=$build/tests/cuda-sim
export LD_LIBRARY_PATH

head -c "$(amount 1500)" "$sample/text.txt" >"$dir/short.txt"
long_text

# score NAME OPTION...: nll_per_token of the short text
score() {
	name=$1
	shift
	"$worker" score --model "$sample" --text "$dir/short.txt" --daemon "$socket" --experts cache --slots 8 --json "$@" \
		>"$dir/score.json" 2>"$dir/score.err"
	ok $? "$name: the worker succeeds" "$dir/score.err"
}

# As in e2e/cuda-sim: kernels for devices may pack activations.
same() {
	within "$(json "$dir/score.json" nll_per_token)" "$(awk -v x="$expected" -v e="$(slack 0.001)" 'BEGIN { printf "%.9f", x * (1 - e) }')" \
		"$(awk -v x="$expected" -v e="$(slack 0.001)" 'BEGIN { printf "%.9f", x * (1 + e) }')" "$1: nll_per_token is the host's"
}

refuse() { # STATUS NAME WORDS OPTION...
	wanted=$1 name=$2 words=$3
	shift 3
	"$worker" score --model "$sample" --text "$dir/short.txt" --daemon "$socket" --experts cache --slots 4 --fill push \
		--device cuda "$@" >"$dir/refused" 2>&1
	is $? "$wanted" "$name: refused"
	grep -q -e "$words" "$dir/refused"
	ok $? "$name: it says why" "$dir/refused"
}

# A worker with much to do, in the background: $job
work() {
	"$worker" score --model "$sample" --text "$dir/long.txt" --daemon "$socket" --experts cache --slots 4 --mode full \
		--fill push --device cuda >"$dir/text" 2>"$dir/err" &
	job=$!
	started="$started $job"
	wait_for have_sessions 1
	ok $? 'a worker is attached' "$dir/err"
}

open_files() { find "/proc/$daemon/fd" -mindepth 1 2>/dev/null | wc -l; }
# shellcheck disable=SC2317 # wait_for calls it
few_files() { [ "$(open_files)" -le "$1" ]; }
# shellcheck disable=SC2317 # wait_for calls it; a session has them a moment after it has begun
has_slots() {
	"$moectl" --socket "$socket" sessions --json >"$dir/sessions.json" 2>/dev/null
	[ "$(json "$dir/sessions.json" sessions.0.device_bytes)" -gt 0 ] 2>/dev/null
}
# shellcheck disable=SC2317 # wait_for calls it
fails() { ! kill -0 "$job" 2>/dev/null; }

start_daemon --model "$sample" --writable-weights
require $? 'a daemon that does not push' "$dir/daemon.log"
refuse 77 'not asked for' 'start it with --push-cuda'
stop_daemon
is $? 0 'the daemon ends with 0'

start_daemon --model "$sample" --push-cuda
require $? 'a daemon with sealed weights' "$dir/daemon.log"
refuse 1 'sealed weights' 'writable-weights'
CUSIM_READ_ONLY=1
export CUSIM_READ_ONLY
stop_daemon
is $? 0 'the daemon ends with 0'

start_daemon --model "$sample" --push-cuda
require $? 'the same where GPUs register read-only memory' "$dir/daemon.log"
score host --fill pull
expected=$(json "$dir/score.json" nll_per_token)
score 'sealed weights' --fill push --device cuda
same 'sealed weights'
CUSIM_READ_ONLY=
stop_daemon
is $? 0 'the daemon ends with 0'

CUSIM_DEVICES=2
export CUSIM_DEVICES
start_daemon --model "$sample" --writable-weights --push-cuda
require $? 'a daemon that pushes' "$dir/daemon.log"
files=$(open_files)
for mode in decode prefetch full; do
	score "$mode" --fill push --device cuda --mode $mode
	same "$mode"
	within "$(json "$dir/score.json" fills)" 1 1000000 "$mode: experts were pushed"
done
score 'two ranks' --fill push --device cuda --tp 2
same 'two ranks'
score 'the second device' --fill push --device cuda:1
same 'the second device'
wait_for few_files "$files"
ok $? "all that was imported is given back: $(open_files) open files, $files before"

stop_daemon
is $? 0 'the daemon ends with 0'

# Copies that take their time: the worker's streams wait for the timeline, and for nothing else.
CUSIM_DELAY=6000
export CUSIM_DELAY
start_daemon --model "$sample" --writable-weights --push-cuda
require $? 'a daemon whose copies take their time' "$dir/daemon.log"
unset CUSIM_DELAY
head -c 300 "$sample/text.txt" >"$dir/short.txt"
score 'a shorter text' --fill pull
expected=$(json "$dir/score.json" nll_per_token)
CUSIM_MUTANT=drop-wait:none
CUSIM_LOG=$dir/sites
export CUSIM_MUTANT CUSIM_LOG
score 'slow copies' --fill push --device cuda --mode full
same 'slow copies'
unset CUSIM_LOG
sites=$(sort -u "$dir/sites" | awk '$3 ~ "cuStreamWaitValue32" { print $2 }')
is "$(echo "$sites" | wc -l)" 1 'streams wait for words at one place'
CUSIM_MUTANT=drop-wait:$sites
"$worker" score --model "$sample" --text "$dir/short.txt" --daemon "$socket" --experts cache --slots 8 --json --mode full \
	--fill push --device cuda >"$dir/score.json" 2>"$dir/score.err"
code=$?
[ "$code" != 0 ] || awk -v x="$(json "$dir/score.json" nll_per_token)" -v y="$expected" \
	'BEGIN { exit x > y * 0.999 && x < y * 1.001 }'
ok $? 'without that wait the score is another one, or none'
unset CUSIM_MUTANT
stop_daemon
is $? 0 'the daemon ends with 0'

start_daemon --model "$sample" --writable-weights --push-cuda
require $? 'a daemon that pushes' "$dir/daemon.log"
files=$(open_files)
work
wait_for has_slots
ok $? 'its session has slots in a GPU' "$dir/sessions.json"
sleep 0.3
kill -9 "$job"
wait "$job" 2>/dev/null
forget "$job"
wait_for have_sessions 0
ok $? 'a worker that is killed: its session ends'
wait_for few_files "$files"
ok $? "and what was imported is given back: $(open_files) open files, $files before"
score 'after it' --fill push --device cuda
same 'after it'

work
sleep 0.3
daemon_dies "$job" 'a daemon that pushes'

# The GPU takes copies and does not end them; then a driver whose calls do not return.
for knob in CUSIM_DELAY=600000000 CUSIM_HANG=cuMemcpyBatchAsync; do
	asan=${ASAN_OPTIONS-}
	# What the driver hangs on is left behind, and meant to be.
	export "${knob?}" ASAN_OPTIONS="$asan:detect_leaks=0"
	start_daemon --model "$sample" --writable-weights --push-cuda=1
	require $? "$knob: a daemon that pushes" "$dir/daemon.log"
	"$moectl" --socket "$socket" status --json >"$dir/status.json" 2>"$dir/err"
	is "$(json "$dir/status.json" push_ended)" 0 "$knob: that has not ended yet" "$dir/err"
	unset "${knob%%=*}"
	ASAN_OPTIONS=$asan
	work
	began=$(now_ms)
	wait_for fails
	ok $? "$knob: the worker ends: $(cat "$dir/err")"
	within $(($(now_ms) - began)) 0 $((2 * soon_ms)) "$knob: within seconds"
	wait "$job"
	is $? 1 "$knob: with an error"
	forget "$job"
	grep -q 'pushing into GPUs has ended' "$dir/daemon.log"
	ok $? "$knob: the daemon says so" "$dir/daemon.log"
	"$moectl" --socket "$socket" status --json >"$dir/status.json" 2>"$dir/err"
	"$moectl" --socket "$socket" stats --prometheus >"$dir/figures" 2>>"$dir/err"
	is "$(json "$dir/status.json" push_cuda)/$(json "$dir/status.json" push_ended)/$(grep -c '^moe_expertd_push_ended 1$' "$dir/figures")" \
		1/1/1 "$knob: so do its status and its metrics" "$dir/err"
	refuse 1 "$knob: another one" 'pushing into GPUs has ended'
	score "$knob: a worker that pulls" --fill pull --device cuda
	same "$knob: a worker that pulls"
	wait_for have_sessions 0
	ok $? "$knob: no session is left"
	stop_daemon
	is $? 0 "$knob: the daemon ends with 0"
done
finish
