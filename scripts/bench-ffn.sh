#!/bin/sh
# SPDX-License-Identifier: MIT
#
# bench-ffn - the CPU pool in every format on real shapes, as a table.
#
#   scripts/bench-ffn.sh [--samples N] [--formats 'NAME...'] [--lines FILE] [--out FILE]
#
# Each figure is the best of N rounds (default 15) over the best of the same run's limit: of reading the weights for 1 and
# 4 tokens, of the dot-product instructions for prefill. At least 4 GiB of weights are in rotation. The table becomes this
# machine's section of FILE (default docs/PERFORMANCE.md); those of other machines stay. Takes some twenty minutes on an
# otherwise idle machine. With --lines measurements are kept in a file, and what is there already is not measured again:
# a table can be made in pieces, --formats by --formats.
set -eu

# shellcheck source=scripts/bench-common.sh
. "$(dirname -- "$0")/bench-common.sh"
samples=15
out=docs/PERFORMANCE.md
lines=
formats='bf16 f16 fp8-block fp8-row int8 q8_0 int4-g128-f16 int4-g32-bf16 q4_0 mxfp4 q4_1 q4_k q5_k q6_k iq4_xs'
while [ $# -gt 0 ]; do
	case $1 in
	--samples) samples=${2:?--samples takes a number} ;;
	--formats) formats=${2:?--formats takes names} ;;
	--lines) lines=$(typed "${2:?--lines takes a file}") ;;
	--out) out=$(typed "${2:?--out takes a file}") ;;
	-h | --help) usage 13 && exit 0 ;;
	*) echo "bench-ffn: unknown option $1 (try --help)" >&2 && exit 2 ;;
	esac
	shift 2
done
if [ -z "$lines" ]; then
	lines=$(mktemp "${TMPDIR:-/tmp}/moe-ffn.XXXXXX")
	trap 'rm -f "$lines"' EXIT
	trap 'exit 130' INT TERM
fi
touch "$lines"

# run COLUMN OPTION...: one line of JSON, or none where the shape does not fit the format
run() {
	column=$1
	shift
	! grep -q "^$format $column " "$lines" || return 0
	printf '\rbench-ffn: %-16s %-24s' "$format" "$column" >&2
	"$build/tools/moe-bench" ffn --format "$format" --samples "$samples" --json "$@" 2>/dev/null |
		sed "s/^/$format $column /" >>"$lines" || true
}

for format in $formats; do
	run qwen3-1 --model-shape qwen3-30b-a3b --tokens 1
	run qwen3-4 --model-shape qwen3-30b-a3b --tokens 4
	run deepseek-1 --model-shape deepseek-v3 --tokens 1
	run deepseek-4 --model-shape deepseek-v3 --tokens 4
	run gpt-oss-1 --model-shape gpt-oss-20b --tokens 1
	run mixtral-128 --model-shape mixtral-8x7b --tokens 512
	run mixtral-32 --model-shape mixtral-8x7b --tokens 128
	run deepseek-128 --model-shape deepseek-v3 --tokens 512 --active 32
	run deepseek-32 --model-shape deepseek-v3 --tokens 128 --active 32
done
printf '\n' >&2
perl scripts/bench-table.pl "$lines" "$out" >"$out.new"
mv "$out.new" "$out"
echo "bench-ffn: written to $out" >&2
