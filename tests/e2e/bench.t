#!/bin/sh
# SPDX-License-Identifier: MIT
#
# bench - moe-bench ffn and compare say what their page says: the fields of their JSON, numbers that fit each other, and
# results that the reference confirms. Small shapes: nothing here measures.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

small='--hidden 256 --inter 192 --experts 16 --topk 4 --bytes 8M --samples 3 --threads 1'

field() { json "$dir/out" "$1"; }

# ratio A B: of two fields
ratio() { awk -v a="$(field "$1")" -v b="$(field "$2")" 'BEGIN { print (b > 0 ? a / b : "none") }'; }

# run OPTION...: JSON into $dir/out
run() {
	timeout 120 "$bench" "$@" --json >"$dir/out" 2>"$dir/err"
	require $? "moe-bench $*" "$dir/err"
}

# What best and median, rates and milliseconds must have to do with each other: PREFIX ends with a dot or is empty.
figures() {
	within "$(ratio "${1}ms.best" "${1}ms.median")" 0.0001 1 'the best is not slower than the median'
	within "$(ratio "${1}weight_gbs.median" "${1}weight_gbs.best")" 0.0001 1 'nor its rate lower'
	within "$(awk -v a="$(ratio "${1}gflops.best" "${1}weight_gbs.best")" -v b="$(ratio "${1}gflops.median" \
		"${1}weight_gbs.median")" 'BEGIN { print a / b }')" 0.95 1.05 'arithmetic and weights are of the same time'
}

# -- policy -------------------------------------------------------------------------------------------------------

timeout 120 "$bench" policy --json --samples 2 --experts 32 --slots 8 --tokens 2 --topk 4 >"$dir/policies" 2>"$dir/err"
require $? 'moe-bench policy' "$dir/err"
is "$(wc -l <"$dir/policies")" 13 'a line for each policy'
while read -r line; do
	echo "$line" >"$dir/out"
	is "$(field experts) $(field slots) $(field tokens) $(field topk)" '32 8 2 4' "$(field policy): what was asked for"
	within "$(ratio event_ns.best event_ns.p50)" 0.0001 1 'the best is not slower than the median'
	within "$(field requests)" 4 8 'distinct experts of two tokens'
	within "$(field found)" 0.05 0.95 'some of them are found'
done <"$dir/policies"

# -- ffn ----------------------------------------------------------------------------------------------------------

for format in bf16 int8 mxfp4; do
	# Word splitting is meant.
	# shellcheck disable=SC2086
	run ffn $small --format $format --tokens 3 --isa avx2 --check
	is "$(field format) $(field isa) $(field threads) $(field tokens)" "$format avx2 1 3" 'what was asked for'
	is "$(field shape.hidden) $(field shape.inter) $(field shape.experts) $(field shape.topk)" '256 192 16 4' 'the shape'
	within "$(field shape.resident_bytes)" 8388608 8800000 'the bytes in rotation'
	figures ''
	within "$(field max_rel_error)" 1e-9 0.05 'the reference confirms the result'
	within "$(ratio weight_gbs.best read_limit_gbs)" "$(field share_of_read | awk '{ print $1 * 0.9 - 0.001 }')" \
		"$(field share_of_read | awk '{ print $1 * 1.1 + 0.001 }')" 'the share of the read limit'
	within "$(ratio gflops.best compute_limit_gflops)" "$(field share_of_compute | awk '{ print $1 * 0.9 - 0.001 }')" \
		"$(field share_of_compute | awk '{ print $1 * 1.1 + 0.001 }')" 'the share of the arithmetic limit'
done

# The bytes of a request are those of the experts that it does choose: BF16, two bytes for each of 3 x 256 x 192.
# shellcheck disable=SC2086
run ffn $small --tokens 1
within "$(awk -v g="$(field weight_gbs.best)" -v ms="$(field ms.best)" 'BEGIN { print g * ms * 1e6 / (4 * 2 * 3 * 256 * 192) }')" \
	0.98 1.02 'each expert counts once'
is "$(field max_rel_error)" null 'without --check there is no error'

for shape in qwen3-30b-a3b:2048:768:128:8 mixtral-8x7b:4096:14336:8:2 deepseek-v3:7168:2048:256:8 \
	gpt-oss-20b:2880:2880:32:4 kimi-k2:7168:2048:384:8; do
	run ffn --model-shape "${shape%%:*}" --format mxfp4 --bytes 1K --samples 1
	is "$(field shape.name):$(field shape.hidden):$(field shape.inter):$(field shape.experts):$(field shape.topk)" \
		"$shape" "the shape of ${shape%%:*}"
done

if [ "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)" -gt 6291456 ] && [ -z "${MOE_SANITIZED-}" ]; then
	run ffn --format mxfp4 --samples 1
	within "$(field shape.resident_bytes)" 4294967296 4400000000 'at least 4 GiB are in rotation unless told'
else
	skip 'not enough memory for 4 GiB of weights'
fi

for wrong in '--format nosuch' '--model-shape nosuch' '--active 5 --topk 4' '--bytes 1X' '--bytes 0' '--tokens 0'; do
	for verb in ffn compare; do
		# shellcheck disable=SC2086
		"$bench" $verb $wrong >"$dir/out" 2>&1
		is $? 2 "$verb $wrong: exit code" || sed 's/^/#   /' "$dir/out"
	done
done

# -- plan -----------------------------------------------------------------------------------------------------------

run plan --samples 3
is "$(field layers) $(field experts) $(field slots) $(field gpus) $(field rows.#)" '58 256 288 32 5' 'the shape, and a row for each policy'
for row in 0 1 2 3 4; do
	within "$(ratio "rows.$row.ms.best" "rows.$row.ms.median")" 0.0001 1 "$(field "rows.$row.policy"): the best is not slower than the median"
	within "$(awk -v a="$(field "rows.$row.sorts")" -v b="$(ratio "rows.$row.ms.median" sort_ms.median)" 'BEGIN { print a / b }')" 0.99 1.01 \
		'sorts are of the same time'
done

# -- compare ------------------------------------------------------------------------------------------------------

# peer NAME: where it stands in rows, or nothing; then its reason is in $why.
peer() {
	why=
	for i in 0 1 2 3 4; do
		case $(field rows.$i.name) in "$1" | "$1 "[0-9]*) echo rows.$i && return ;; esac
	done
}

reason() {
	for i in 0 1 2 3 4; do
		[ "$(field absent.$i.name)" != "$1" ] || { field absent.$i.why && return; }
	done
}

# One skip for each peer that is missing here, whatever the number of runs.
missing=
not_built() {
	case $missing in *" $1 "*) return ;; esac
	missing="$missing $1 "
	skip "$1: $why"
}

# Under a sanitizer one format is enough: the others differ in kernels, which have tests of their own.
formats='bf16 int8 f16'
[ -z "${MOE_SANITIZED-}" ] || formats=int8
# shellcheck disable=SC2086
for format in $formats; do
	for tokens in '--tokens 1' '--tokens 7' '--tokens 30 --skew'; do
		run compare $small --format $format $tokens --check
		is "$(field format) $(field threads) $(field rows.0.name)" "$format 1 moe-expertd" 'the pool is the first row'
		is "$(field rows.0.ratio.best) $(field rows.0.ratio.median)" '1 1' 'to which the others are compared'
		within "$(field read_limit_gbs)" 0.01 100000 'the read limit'
		for name in moe-expertd onednn onednn-packed ggml; do
			row=$(peer $name)
			if [ -z "$row" ]; then
				why=$(reason $name)
				is "${why:+given}" given "there is no $name: $why"
				case $why in 'not built in'*) not_built "$name" ;; esac
				continue
			fi
			figures "$row."
			within "$(field "$row.max_rel_error")" 1e-9 0.05 "the reference confirms the result of $(field "$row.name")"
			within "$(ratio "$row.ms.best" rows.0.ms.best)" "$(field "$row.ratio.best" | awk '{ print $1 * 0.9 - 0.002 }')" \
				"$(field "$row.ratio.best" | awk '{ print $1 * 1.1 + 0.002 }')" 'its time over the pool'"'"'s'
		done
	done
done

# shellcheck disable=SC2086
run compare $small --format mxfp4
is "$(field 'rows.#') $(field 'absent.#')" '1 3' 'a format that no peer takes'
# shellcheck disable=SC2086
"$bench" compare $small --check >"$dir/text" 2>&1
is $? 0 'compare as text' || sed 's/^/#   /' "$dir/text"
grep -q '^  moe-expertd ' "$dir/text" && grep -q '^  onednn' "$dir/text" && grep -q '^  onednn-packed' "$dir/text" &&
	grep -q '^  ggml' "$dir/text"
ok $? 'each has its line' "$dir/text"
finish
