#!/bin/sh
# SPDX-License-Identifier: MIT
#
# cuda-sim - workers on a simulated GPU: they score as those on the host do, in every mode, on several ranks; and they end
# with an error soon after their daemon was killed.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"
# shellcheck source=tests/e2e/gpu-worker.sh
. "$(dirname -- "$0")/gpu-worker.sh"

[ -e "$build/tests/cuda-sim/libcuda.so.1" ] || skip_all 'built without CUDA'
LD_LIBRARY_PATH=$build/tests/cuda-sim
export LD_LIBRARY_PATH

head -c "$(amount 1500)" "$sample/text.txt" >"$dir/short.txt"

knobs= # NAME=VALUE... of the simulation for the next worker

# score NAME OPTION...: nll_per_token of the short text
score() {
	name=$1
	shift
	# shellcheck disable=SC2086 # it is a list
	env $knobs "$worker" score --model "$sample" --text "$dir/short.txt" --json "$@" >"$dir/score.json" 2>"$dir/score.err"
	ok $? "$name: the worker succeeds" "$dir/score.err"
}

start_daemon --model "$sample" --writable-weights
require $? 'the daemon serves the sample' "$dir/daemon.log"

score host --experts cache --slots 8 --fill pull --daemon "$socket"
expected=$(json "$dir/score.json" nll_per_token)

# Kernels for devices may pack activations (kernels/cuda/cuda-kernels.h): within 0.1 %.
same() {
	within "$(json "$dir/score.json" nll_per_token)" "$(awk -v x="$expected" -v e="$(slack 0.001)" 'BEGIN { printf "%.9f", x * (1 - e) }')" \
		"$(awk -v x="$expected" -v e="$(slack 0.001)" 'BEGIN { printf "%.9f", x * (1 + e) }')" "$1: nll_per_token is the host's"
}

# With attention and router on the host; gpu_scores has them on the device.
for mode in decode prefetch full; do
	knobs=CUSIM_SEED=${TEST_SEED:-$$}
	score "$mode" --device cuda --dense host --experts cache --slots 8 --mode $mode --fill pull --daemon "$socket"
	same "$mode"
	pairs=$(($(json "$dir/score.json" pairs.hit) + $(json "$dir/score.json" pairs.miss_buffer)))
	within "$pairs" 1 1000000000 "$mode: the device has computed pairs"
	is "$(json "$dir/score.json" dense)" host "$mode: attention and router were on the host"
done
knobs='CUSIM_READ_ONLY=1 CUSIM_DELAY=50'
score 'read-only registration' --device cuda --experts cache --slots 4 --fill pull \
	--daemon "$socket"
same 'read-only registration'
# A token a step, so that experts have few pairs; not many of them.
whole=$expected by_token='--decode --limit 49 --window 48'
# shellcheck disable=SC2086 # a list
score 'host, token by token' --experts cache --slots 4 --fill pull $by_token --daemon "$socket"
expected=$(json "$dir/score.json" nll_per_token)
for how in cost always; do
	# shellcheck disable=SC2086 # a list
	score "zero copy, $how" --device cuda --experts cache --slots 4 --zero-copy $how $by_token --daemon "$socket"
	same "zero copy, $how"
done
within "$(json "$dir/score.json" pairs.pool)" 1 1000000000 'always: experts were read in the pool'
within "$(json "$dir/score.json" fills)" 0 0 'and none was filled'
token_by_token=$expected expected=$whole
knobs=CUSIM_DEVICES=2
score 'the second device' --device cuda:1 --experts cache --slots 4 --fill pull --daemon "$socket"
same 'the second device'
knobs=
score 'two ranks' --device cuda --experts cache --slots 8 --fill pull --tp 2 --daemon "$socket"
same 'two ranks'
is "$(json "$dir/score.json" dense)" device 'two ranks: attention and router were on the device'

# A sanitizer makes a step twenty times slower.
replays=1000
[ -z "${MOE_SANITIZED-}" ] || replays=256
knobs=CUSIM_SEED=$$
gpu_scores $replays
knobs=

refuse() { # STATUS NAME WORDS OPTION...
	wanted=$1 name=$2 words=$3
	shift 3
	# shellcheck disable=SC2086 # it is a list
	env $knobs "$worker" score --model "$sample" --text "$dir/short.txt" --daemon "$socket" --experts cache \
		--slots 4 "$@" >"$dir/refused" 2>&1
	is $? "$wanted" "$name: refused"
	grep -q -e "$words" "$dir/refused"
	ok $? "$name: it says why" "$dir/refused"
}
refuse 77 'push into a device' 'set fill to MOE_FILL_PULL' --device cuda --fill push
refuse 77 'a device that is not there' '7' --device cuda:7 --fill pull
knobs=CUSIM_FAIL=cuMemCreate:1
refuse 1 'no memory on the device' 'MiB wanted' --device cuda --fill pull
knobs=

# shellcheck disable=SC2317 # wait_for calls it
shows_modes() {
	"$moectl" --socket "$socket" stats >"$dir/table" 2>&1
	grep -q -E '^ *[0-9]+  (decode|prefetch) +[1-9][0-9]* ' "$dir/table"
}

long_text
"$worker" score --model "$sample" --daemon "$socket" --text "$dir/long.txt" --device cuda --dense host \
	--experts cache --slots 4 --fill pull >"$dir/text" 2>"$dir/err" &
job=$!
started="$started $job"
wait_for have_sessions 1
ok $? 'a worker is attached' "$dir/err"
sleep 0.5
wait_for shows_modes
ok $? 'moectl stats shows its steps by mode' "$dir/table"
daemon_dies "$job" 'a device'

start_daemon --model "$sample" --writable-weights
require $? 'a daemon once more' "$dir/daemon.log"
gpu_death

# usage WORDS OPTION...: what cannot be is a wrong command line, and says why.
usage() {
	words=$1
	shift
	"$worker" score --model "$sample" --text "$dir/short.txt" "$@" >"$dir/refused" 2>&1
	is $? 2 "$*: a wrong command line" "$dir/refused"
	grep -q -e "$words" "$dir/refused"
	ok $? "$*: it says why" "$dir/refused"
}
usage 'device cuda' --graph --decode
usage 'without --dense device' --device host --answers copy
usage 'one rank' --device cuda --graph --decode --tp 2
usage 'only decode steps' --device cuda --graph
usage 'no slots on a GPU' --dense device
usage 'host with --defer' --device cuda --dense device --defer 1 --decode

# Each family's attention and router: FP32 activations leave nothing but another order of sums.
for family in mixtral qwen2_moe qwen3_moe olmoe deepseek_v2 deepseek_v3 kimi_k2 glm4_moe; do
	rm -rf "$dir/model"
	"$mkmodel" --family $family --out "$dir/model" >"$dir/mkmodel.log" 2>&1
	ok $? "$family: a model is made" "$dir/mkmodel.log" || continue
	for way in '--experts local' '--device cuda --slots 3' '--device cuda --slots 3 --decode --graph'; do
		# shellcheck disable=SC2086 # a list
		"$worker" score --model "$dir/model" --text "$dir/short.txt" --window 48 --limit 96 --json --isa avx2 $way \
			>"$dir/score.json" 2>"$dir/score.err"
		ok $? "$family: $way" "$dir/score.err" || continue
		case $way in
		*local) local=$(json "$dir/score.json" nll_per_token) ;;
		*) within "$(json "$dir/score.json" nll_per_token)" \
			"$(awk -v x="$local" 'BEGIN { print x - 3e-3 }')" \
			"$(awk -v x="$local" 'BEGIN { print x + 3e-3 }')" "$family: $way: nll_per_token" ;;
		esac
	done
	is "$(json "$dir/score.json" graph_steps)" 80 "$family: all but the first 16 steps were replayed"
done

start_daemon --model "$sample"
require $? 'a daemon with sealed weights' "$dir/daemon.log"
refuse 1 'sealed weights' 'writable-weights' --device cuda --fill pull
# Such a driver registers read-only memory only where it is told so, and it is not: nothing of the pool is registered.
knobs='CUSIM_PAGEABLE=1 CUSIM_DELAY=50'
score 'the host'"'"'s page tables' --device cuda --experts cache --slots 4 --fill pull -v --daemon "$socket"
same 'the host'"'"'s page tables'
grep -q 'page tables: nothing of it is registered' "$dir/score.err"
ok $? 'the worker says so with -v' "$dir/score.err"
expected=$token_by_token
# shellcheck disable=SC2086 # a list
score 'every expert by them' --device cuda --experts cache --slots 4 --zero-copy always $by_token --daemon "$socket"
same 'every expert by them'
# shellcheck disable=SC2086
score 'prefetched' --device cuda --experts cache --slots 4 --zero-copy always --pages-fill prefetch $by_token --daemon "$socket"
same 'prefetched'
grep -q "each step's are prefetched" "$dir/score.err"
ok $? 'the worker says so' "$dir/score.err"
knobs="$knobs CUSIM_FAIL=cuMemPrefetchAsync:100"
# shellcheck disable=SC2086
score 'a driver that refuses' --device cuda --experts cache --slots 4 --zero-copy always --pages-fill prefetch $by_token \
	--daemon "$socket"
same 'a driver that refuses'
grep -q 'refused advice on pages' "$dir/score.err"
ok $? 'the worker says when it has' "$dir/score.err"
stop_daemon
is $? 0 'the daemon ends with 0'
finish
