#!/bin/sh
# SPDX-License-Identifier: MIT
#
# bench-device - all figures of a GPU in one go, written into docs/PERFORMANCE.md: skipped, with the reason, where there is none.
#
#   scripts/bench-device.sh [--model DIR] [--out FILE] [--chart FILE] [-- OPTION OF moe-bench device...]
#
# A private daemon serves random models whose experts have 1, 9 and 66 MiB (made in build/ once; 4 GB), or only DIR, and pushes
# into GPUs if it can. `moe-bench device --check` measures (about two minutes), compute-sanitizer looks at a small run
# where it is installed, and the chart's input (default docs/breakeven-server.json) and picture are made anew. All that was
# measured stays in build/bench-device.json.
set -eu

# shellcheck source=scripts/bench-common.sh
. "$(dirname -- "$0")/bench-common.sh"
out=docs/PERFORMANCE.md chart=docs/breakeven-server.json model=
while [ $# -gt 0 ]; do
	case $1 in
	--model) model=$(typed "${2:?--model takes a folder}") ;;
	--out) out=$(typed "${2:?--out takes a file}") ;;
	--chart) chart=$(typed "${2:?--chart takes a file}") ;;
	--) shift && break ;;
	-h | --help) usage 12 && exit 0 ;;
	*) echo "bench-device: unknown option $1 (try --help)" >&2 && exit 2 ;;
	esac
	shift 2
done
if ! nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >"$build/bench-device.gpus" 2>/dev/null; then
	echo 'bench-device: skipped: no NVIDIA GPU and driver here (nvidia-smi lists none)'
	exit 0
fi
driver=$(sed -n '1s/.*, *//p' "$build/bench-device.gpus")

private_daemons
first=$model
if [ -z "$model" ]; then
	random_model bench-model 2 2048 768 128 8
	random_model bench-model-small 1 1024 176 64 8
	random_model bench-model-large 1 4096 2816 16 2
	first=$build/bench-model
fi

start() { daemon_start --model "$first" --name bench --writable-weights "$@"; }
start --push-cuda || start || { cat "$dir/log" >&2 && exit 1; }
if [ -z "$model" ]; then
	for size in small large; do
		"$build/tools/moectl" load "$(realpath "$build/bench-model-$size")" --name "bench-$size" >"$dir/load" 2>&1 ||
			cat "$dir/load" >&2
	done
fi

# The figures are printed whatever has failed; then this script fails too, at its end.
failed=0
timeout 480 "$build/tools/moe-bench" device --check --json "$@" >"$dir/device.json" || failed=$?
[ -s "$dir/device.json" ] || exit 1
mv "$dir/device.json" "$build/bench-device.json"
daemon_end

# sanitize TOOL: what it says of small layers and copies, in a word or two
sanitize() {
	command -v compute-sanitizer >/dev/null || { echo 'not installed' && return; }
	# Without cuBLAS, at whose kernels racecheck finds fault: a file that is no library is in its place.
	mkdir -p "$dir/no-blas"
	for version in .13 .12 .11 ''; do
		: >"$dir/no-blas/libcublas.so$version"
	done
	LD_LIBRARY_PATH="$dir/no-blas${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
		timeout 240 compute-sanitizer --tool "$1" --error-exitcode 9 \
		"$build/tools/moe-bench" device --daemon "$dir/none" --hidden 256 --inter 256 --experts 16 --topk 4 \
		--bytes 64M --samples 1 --check >"$build/bench-device.$1" 2>&1 &&
		echo clean && return
	[ $? != 124 ] || { echo 'not finished in 240 s' && return; }
	echo "found something: see $build/bench-device.$1"
}
memcheck=$(sanitize memcheck)
racecheck=$(sanitize racecheck)
echo "bench-device: compute-sanitizer: memcheck: $memcheck; racecheck: $racecheck" >&2

perl scripts/bench-device-table.pl "$build/bench-device.json" "$driver" "$memcheck" "$racecheck" >"$dir/table"
sed '/^## GPU/,$d' "$out" | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' >"$dir/page"
{
	cat "$dir/page"
	echo
	cat "$dir/table"
} >"$out.new"
mv "$out.new" "$out"
echo "bench-device: written to $out" >&2

# The chart: the CPU's rates of today beside the GPU's.
for tokens in 1 4 16 512; do
	"$build/tools/moe-bench" ffn --format int4-g128-f16 --tokens "$tokens" --bytes 1G --json
done >"$dir/ffn"
if perl scripts/bench-device-table.pl --chart "$build/bench-device.json" "$dir/ffn" >"$dir/chart.json" &&
	perl scripts/breakeven.pl "$dir/chart.json" >"$dir/chart.svg"; then
	mv "$dir/chart.json" "$chart"
	mv "$dir/chart.svg" "${chart%.json}.svg"
else
	failed=1
fi
exit "$failed"
