#!/bin/sh
# SPDX-License-Identifier: MIT
#
# bench - all of moe-bench against a private daemon with a random model of a real shape.
#
#   scripts/bench.sh [--model DIR]
#
# Without --model a folder of Qwen3-30B-A3B's expert shape (hidden 2048, intermediate 768, 128 experts, top 8) with two
# layers, 2.5 GB, is made in build/bench-model once. Quote the ratios, not the bare numbers: each stands beside this
# machine's own limit, measured in the same run.
set -eu

# shellcheck source=scripts/bench-common.sh
. "$(dirname -- "$0")/bench-common.sh"
model=
case ${1-} in
--model) model=$(typed "${2:?--model takes a folder}") ;;
-h | --help) usage 10 && exit 0 ;;
?*) echo "bench: unknown option $1 (try --help)" >&2 && exit 2 ;;
esac

if [ -z "$model" ]; then
	random_model bench-model 2 2048 768 128 8
	model=$build/bench-model
fi
private_daemons
daemon_start --model "$model" --name bench || { cat "$dir/log" >&2 && exit 1; }
grep 'GB/s\|pages' "$dir/log" || true
"$build/tools/moe-bench" ring
"$build/tools/moe-bench" attach
for tokens in 1 4 16 512; do
	"$build/tools/moe-bench" compute --tokens "$tokens" --samples 60
done
daemon_end
daemon_start || { cat "$dir/log" >&2 && exit 1; }
"$build/tools/moe-bench" load "$model"
