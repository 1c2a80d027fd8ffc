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

typed_in=$PWD
cd "$(dirname -- "$0")/.."
# A path as who typed it meant it.
typed() { case $1 in /*) printf '%s\n' "$1" ;; *) printf '%s\n' "$typed_in/$1" ;; esac }
build=${MOE_BUILD:-build}
model=$build/bench-model
case ${1-} in
--model) model=$(typed "${2:?--model takes a folder}") ;;
-h | --help) sed -n '4,10s/^# \{0,1\}//p' "$0" && exit 0 ;;
?*) echo "bench: unknown option $1 (try --help)" >&2 && exit 2 ;;
esac

if [ ! -f "$model/config.json" ]; then
	echo "bench: making a random model in $model"
	"$build/tools/moe-mkmodel" --family qwen3_moe --layers 2 --hidden 2048 --inter 768 --experts 128 --topk 8 \
		--heads 8 --kv-heads 2 --head-dim 64 --vocab 256 --shards 4 --out "$model"
fi
dir=$(mktemp -d "${TMPDIR:-/tmp}/moe-bench.XXXXXX")
daemon=
end() {
	[ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
	[ -z "$daemon" ] || wait "$daemon" 2>/dev/null || true
	rm -rf "$dir"
}
trap end EXIT
trap 'exit 130' INT TERM
mkfifo "$dir/ready"
"$build/daemon/moe-expertd" --socket "$dir/socket" --model "$model" --name bench --ready-fd 3 3>"$dir/ready" 2>"$dir/log" &
daemon=$!
read -r _ <"$dir/ready" || { cat "$dir/log" >&2 && exit 1; }
export MOE_EXPERTD_SOCKET="$dir/socket"
grep 'GB/s\|pages' "$dir/log" || true
"$build/tools/moe-bench" ring
"$build/tools/moe-bench" attach
for tokens in 1 4 16 512; do
	"$build/tools/moe-bench" compute --tokens "$tokens" --samples 60
done
kill "$daemon"
wait "$daemon" || true
"$build/daemon/moe-expertd" --socket "$dir/socket" --ready-fd 3 3>"$dir/ready" 2>"$dir/log" &
daemon=$!
read -r _ <"$dir/ready"
"$build/tools/moe-bench" load "$model"
