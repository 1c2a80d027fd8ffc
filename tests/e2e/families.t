#!/bin/sh
# SPDX-License-Identifier: MIT
#
# families - a random model of each family, in its published format, gives the same score whoever computes its experts.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

limit=$(amount 1024)

# score OPTION...: prints nll_per_token
score() {
	"$worker" score --model "$dir/model" --text $sample/text.txt --limit "$limit" --json "$@" \
		>"$dir/score.json" 2>"$dir/score.err" && json "$dir/score.json" nll_per_token
}

# same BOUND OPTION...: FP32 activations (avx2) leave nothing but another order of sums; the best level may round them to
# bfloat16.
same() {
	bound=$(slack "$1")
	shift
	found=$(score "$@")
	within "$found" "$(awk -v x="$reference" -v e="$bound" 'BEGIN { print x - e }')" \
		"$(awk -v x="$reference" -v e="$bound" 'BEGIN { print x + e }')" "$family: $*" || sed 's/^/#   /' "$dir/score.err"
}

for family in mixtral qwen2_moe qwen3_moe olmoe deepseek_v2 deepseek_v3 kimi_k2 glm4_moe; do
	rm -rf "$dir/model"
	"$mkmodel" --family $family --out "$dir/model" >"$dir/mkmodel.log" 2>&1
	ok $? "$family: a model is made" "$dir/mkmodel.log" || continue
	reference=$(score --experts local)
	ok $? "$family: local" "$dir/score.err" || continue
	same 1e-5 --experts cpu --isa avx2
	same 3e-3 --experts cpu
	same 3e-3 --experts cache --slots 3 --mode decode --policy original
	same 3e-3 --experts cache --slots 3 --mode full --fill pull
	same 3e-3 --experts cache --slots 3 --tp 2 --share group --n-copy stairs
	[ $family = glm4_moe ] && continue
	rm -f "$dir/model.gguf"
	"$mkmodel" quantize "$dir/model" "$dir/model.gguf" --format bf16 >"$dir/mkmodel.log" 2>&1
	ok $? "$family: a GGUF file of it" "$dir/mkmodel.log" || continue
	same 1e-5 --experts local --experts-from "$dir/model.gguf"
	same 1e-5 --experts cpu --experts-from "$dir/model.gguf" --isa avx2
done

# FP16 experts, whose range and precision differ from BF16's.
rm -rf "$dir/model"
family=mixtral
"$mkmodel" --family mixtral --dtype f16 --out "$dir/model" >"$dir/mkmodel.log" 2>&1
ok $? 'mixtral in FP16: a model is made' "$dir/mkmodel.log"
reference=$(score --experts local)
for isa in ref avx2 avx512; do
	"$expertd" --isa $isa --version >/dev/null 2>"$dir/isa.err" || { skip "$isa: $(cat "$dir/isa.err")" && continue; }
	same 1e-5 --experts cpu --isa $isa
done
finish
