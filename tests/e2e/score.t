#!/bin/sh
# SPDX-License-Identifier: MIT
#
# score - every path computes the same model: the score of the sample text is the reference's, whoever computes which
# expert, with however many slots, in whichever mode, on however many ranks.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

text=$sample/text.txt
layers=$(json $sample/config.json num_hidden_layers)
topk=$(json $sample/config.json num_experts_per_tok)

# score NAME OPTION...: writes $dir/score.json
score() {
	name=$1
	shift
	"$worker" score --model "$sample" --text "$text" --json "$@" >"$dir/score.json" 2>"$dir/score.err"
	ok $? "$name: the worker succeeds" "$dir/score.err"
}

# same EXPECTED NAME: nll_per_token within 0.001 % when the worker computes: FP32 sums in another order move it by less than
# a millionth. Within 0.1 % by the daemon's kernels, which may round activations to bfloat16 (kernels/kernels.h).
same() {
	found=$(json "$dir/score.json" nll_per_token)
	part=0.001
	[ "$2" != local ] || part=0.00001
	within "$found" "$(awk -v x="$1" -v e=$part 'BEGIN { printf "%.9f", x * (1 - e) }')" \
		"$(awk -v x="$1" -v e=$part 'BEGIN { printf "%.9f", x * (1 + e) }')" "$2: nll_per_token is that of the reference"
}

# A window of 256 tokens has 255 scored ones; each token is computed by topk experts in each layer.
pairs_add_up() {
	tokens=$(json "$dir/score.json" tokens)
	sum=0
	for path in hit miss_buffer pool cpu local; do
		sum=$((sum + $(json "$dir/score.json" pairs.$path)))
	done
	windows_done=$((tokens / 255))
	is "$sum" $((windows_done * 256 * layers * topk)) "$1: the paths add up to tokens x layers x top-k"
}

check() {
	expected=$1
	shift
	score "$@" || return
	same "$expected" "$1"
	pairs_add_up "$1"
}

start_daemon --model "$sample"
require $? 'the daemon serves the sample' "$dir/daemon.log"

reference=$(json $sample/REFERENCE.json nll_per_token)
check "$reference" local --experts local
is "$(json "$dir/score.json" tokens)" "$(json $sample/REFERENCE.json tokens)" 'local: all tokens of the text are scored'
check "$reference" 'cpu' --experts cpu --daemon "$socket"
check "$reference" 'cache, a private daemon' --experts cache

# The rest with the beginning of the text, 31 windows.
head -c 7936 "$text" >"$dir/beginning"
text=$dir/beginning
score 'local, the beginning' --experts local
reference=$(json "$dir/score.json" nll_per_token)
for tp in 2 4; do
	check "$reference" "cpu, tp $tp" --experts cpu --tp $tp --daemon "$socket"
done
check "$reference" 'cpu, one rank asks for all' --experts cpu --tp 2 --share group --daemon "$socket"

# Each number of slots meets each mode, and each of both meets each number of ranks.
row=0
for slots in 4 8 32; do
	column=0
	for mode in auto decode prefetch full; do
		case $(((row + column) % 3)) in
		0) set -- --tp 1 --fill push --policy lru ;;
		1) set -- --tp 2 --fill pull --policy original ;;
		2) set -- --tp 4 --fill push --policy lru --share group --n-copy stairs ;;
		esac
		check "$reference" "cache, $slots slots, $mode, $*" --experts cache --slots $slots --mode $mode "$@" \
			--daemon "$socket"
		column=$((column + 1))
	done
	row=$((row + 1))
done

# Token by token the device may read experts in the pool, whatever the number of ranks.
set -- --decode --limit 256
score 'local, token by token' --experts local "$@"
reference=$(json "$dir/score.json" nll_per_token)
for zero_copy in cost always; do
	for tp in 1 2; do
		check "$reference" "zero copy, $zero_copy, tp $tp" --experts cache --slots 4 --zero-copy $zero_copy --tp $tp "$@" \
			--daemon "$socket"
	done
done
within "$(json "$dir/score.json" reads)" 1 1000000000 'zero copy, always: experts were read in the pool'

stop_daemon
is $? 0 'the daemon ends with 0'
finish
