#!/bin/sh
# SPDX-License-Identifier: MIT
#
# bench-compare - the CPU pool beside other libraries on real shapes, as a table.
#
#   scripts/bench-compare.sh [--samples N] [--formats 'NAME...'] [--shapes 'NAME...'] [--tokens 'N...'] [--bytes SIZE]
#                            [--out FILE]
#
# Each line is one run of `moe-bench compare --check` with N rounds (default 9) and SIZE of weights in rotation (default
# 4G), and as much again for a peer's own copy. The table becomes the section "Peers" of FILE (default
# docs/PERFORMANCE.md). Takes about five minutes on an otherwise idle machine.
set -eu

# shellcheck source=scripts/bench-common.sh
. "$(dirname -- "$0")/bench-common.sh"
samples=9
bytes=4G
formats='bf16 int8'
shapes='qwen3-30b-a3b mixtral-8x7b'
tokens='1 4 512'
out=docs/PERFORMANCE.md
while [ $# -gt 0 ]; do
	case $1 in
	--samples) samples=${2:?--samples takes a number} ;;
	--bytes) bytes=${2:?--bytes takes a size} ;;
	--formats) formats=${2:?--formats takes names} ;;
	--shapes) shapes=${2:?--shapes takes names} ;;
	--tokens) tokens=${2:?--tokens takes numbers} ;;
	--out) out=$(typed "${2:?--out takes a file}") ;;
	-h | --help) usage 12 && exit 0 ;;
	*) echo "bench-compare: unknown option $1 (try --help)" >&2 && exit 2 ;;
	esac
	shift 2
done
lines=$(mktemp "${TMPDIR:-/tmp}/moe-compare.XXXXXX")
trap 'rm -f "$lines"' EXIT
trap 'exit 130' INT TERM

for shape in $shapes; do
	for format in $formats; do
		for n in $tokens; do
			printf '\rbench-compare: %-16s %-8s %5s tokens' "$shape" "$format" "$n" >&2
			"$build/tools/moe-bench" compare --model-shape "$shape" --format "$format" --tokens "$n" \
				--samples "$samples" --bytes "$bytes" --check --json >>"$lines"
		done
	done
done
printf '\n' >&2
perl scripts/bench-peers.pl "$lines" "$out" >"$out.new"
mv "$out.new" "$out"
echo "bench-compare: written to $out" >&2
