#!/bin/sh
# SPDX-License-Identifier: MIT
#
# formats - the sample model in every published format scores as it should, whoever computes its experts.
#
# The worker's own arithmetic takes the exact value of each weight and FP32 activations: its score says what the format
# costs, and must lie near that of the BF16 model. The daemon's paths may round activations (kernels/kernels.h): they
# must lie near the worker's, at every instruction level that this CPU has. Both bounds stand in the table and in
# docs/FORMATS.md, in parts per thousand of nats per token. Level ref computes one weight at a time in double: it has
# fewer tokens to score, and a bound that knows of no rounding.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

text=$sample/text.txt
limit=$(amount 1024)
few=64     # tokens, of ref
ref_bound=0.01
levels=    # that this CPU has
daemons=   # one for each of them

# score NAME OPTION...: writes $dir/score.json; of $tokens tokens
tokens=$limit
window=256
score() {
	what=$1
	shift
	"$worker" score --text "$text" --limit "$tokens" --window $window --json "$@" >"$dir/score.json" 2>"$dir/score.err"
	ok $? "$what: the worker succeeds" "$dir/score.err"
}

# near EXPECTED THOUSANDTHS NAME
near() {
	bound=$(slack "$2")
	found=$(json "$dir/score.json" nll_per_token)
	within "$found" "$(awk -v x="$1" -v e="$bound" 'BEGIN { printf "%.9f", x * (1 - e / 1000) }')" \
		"$(awk -v x="$1" -v e="$bound" 'BEGIN { printf "%.9f", x * (1 + e / 1000) }')" \
		"$3: nats per token within $bound/1000 of $1"
}

# A daemon for each level; those that this CPU does not have say so.
start_levels() {
	all=$socket
	main=$daemon
	for level in ref avx2 avx512 amx; do
		socket=$dir/$level
		if start_daemon --spin 50 --isa $level; then
			levels="$levels $level"
			daemons="$daemons $daemon"
		elif [ "$level" != ref ] && grep -q -- "error: --isa $level: " "$dir/daemon.log"; then
			skip "$level: $(tail -n 1 "$dir/daemon.log")"
		else
			ok 1 "$level: a daemon of its own" "$dir/daemon.log"
		fi
	done
	socket=$all
	daemon=$main
}

stop_levels() {
	for daemon in $daemons; do
		stop_daemon
		is $? 0 'the daemon of a level ends with 0'
	done
}

# at_level LEVEL MODEL PATH NAME: its score, near $exact, or for ref near that of as many tokens
at_level() {
	near_to=$exact
	bound_to=$path_bound
	if [ "$1" = ref ]; then
		tokens=$few window=$few
		score "$4, local, $few tokens" --model "$2" --experts-from "$3" --experts local
		near_to=$(json "$dir/score.json" nll_per_token)
		bound_to=$ref_bound
	fi
	"$moectl" --socket "$dir/$1" load "$3" --name "$4" >"$dir/load" 2>&1
	ok $? "$4, $1: the daemon loads it" "$dir/load"
	score "$4, $1" --model "$2" --experts-from "$3" --experts cpu --daemon "$dir/$1" &&
		near "$near_to" "$bound_to" "$4, $1"
	"$moectl" --socket "$dir/$1" unload "$4" >"$dir/load" 2>&1
	ok $? "$4, $1: the daemon unloads it" "$dir/load"
	tokens=$limit window=256
}

# paths MODEL PATH NAME FORMAT-BOUND PATH-BOUND TP: each path of the experts at PATH
paths() {
	name=$3
	score "$name, local" --model "$1" --experts-from "$2" --experts local || return
	near "$plain" "$4" "$name against bf16"
	exact=$(json "$dir/score.json" nll_per_token)
	"$moectl" --socket "$socket" load "$2" --name "$name" >"$dir/load" 2>&1
	ok $? "$name: the daemon loads it" "$dir/load" || return
	score "$name, cpu" --model "$1" --experts-from "$2" --experts cpu --daemon "$socket" && near "$exact" "$5" "$name, cpu"
	score "$name, cache" --model "$1" --experts-from "$2" --experts cache --slots 16 --tp "$6" --daemon "$socket" &&
		near "$exact" "$5" "$name, cache, tp $6"
	"$moectl" --socket "$socket" unload "$name" >"$dir/load" 2>&1
	ok $? "$name: the daemon unloads it" "$dir/load"
	path_bound=$5
	for level in $levels; do
		at_level "$level" "$1" "$2" "$name"
	done
}

# form MODEL FORMAT FORMAT-BOUND PATH-BOUND TP [OPTION...]
form() {
	model=$1
	format=$2
	bounds="$3 $4 $5"
	shift 5
	case $format in
	q*_* | iq* | mxfp4 | bf16 | f16) out=$dir/$format.gguf ;;
	*) out=$dir/$format ;;
	esac
	"$mkmodel" quantize "$model" "$out" --format "$format" "$@" >/dev/null 2>"$dir/quantize.err"
	ok $? "$format: the model is converted" "$dir/quantize.err" || return
	# shellcheck disable=SC2086 # three words
	paths "$model" "$out" "$(basename "$out")" $bounds
	rm -rf "$out"
}

start_daemon --spin 50
require $? 'a daemon without models' "$dir/daemon.log"
if [ -n "${MOE_SANITIZED-}" ]; then
	skip 'levels one by one: no sanitizer sees into kernels'
else
	start_levels
fi
score 'bf16, local' --model $sample --experts local
plain=$(json "$dir/score.json" nll_per_token)
score 'bf16, cpu' --model $sample --experts cpu && near "$plain" 1 'bf16, cpu'

form $sample fp8-block 3 1 1
form $sample fp8-channel 3 1 2
form $sample int8 3 3 2
for group in 32 64 128; do
	form $sample int4-ct-g$group 15 3 1
	form $sample int4-ct-g$group-zp 15 3 1
	form $sample gptq-g$group 15 3 1
	form $sample awq-g$group 15 3 1
done
form $sample gptq-g128-zp 15 3 1
form $sample q8_0 3 3 2
form $sample q4_0 15 3 4
form $sample q4_1 15 3 2
form $sample mxfp4 15 3 2
form $sample bf16 0.01 1 4
form $sample f16 0.01 0.5 4

# Types with blocks of 256 columns need a model of that size: the same function, widened.
"$mkmodel" widen $sample "$dir/wide" --hidden 256 --inter 256 >/dev/null 2>"$dir/widen.err"
ok $? 'the model is widened' "$dir/widen.err"
score 'wide, local' --model "$dir/wide" --experts local
near "$plain" 0.5 'wide against the sample'
form "$dir/wide" q4_k 15 3 1
form "$dir/wide" q5_k 10 3 1
form "$dir/wide" q6_k 5 3 1
form "$dir/wide" iq4_xs 15 3 1
form "$dir/wide" q4_k 15 3 1 --down-format q6_k --down-every 2

stop_daemon
is $? 0 'the daemon ends with 0'
stop_levels
finish
