#!/bin/sh
# SPDX-License-Identifier: MIT
#
# bench-device - moe-bench device on a simulated driver: all that its page says is in its JSON, the numbers fit each other,
# the checks see right results, and what fails or is missing is said. Nothing here measures.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

if [ ! -e "$build/tests/cuda-sim/libcuda.so.1" ]; then
	"$bench" device >"$dir/out" 2>&1
	is $? 1 'without CUDA: exit code'
	grep -q 'built without CUDA' "$dir/out"
	ok $? 'it says so' "$dir/out"
	finish
fi

if ! nvidia-smi >/dev/null 2>&1; then
	"$bench" device >"$dir/out" 2>&1
	is $? 1 'no GPU: exit code'
	grep -q 'no NVIDIA driver on this machine' "$dir/out"
	ok $? 'no GPU: it says so' "$dir/out"
fi
LD_LIBRARY_PATH=$build/tests/cuda-sim
export LD_LIBRARY_PATH

field() { json "$dir/out" "$1"; }

small='--hidden 256 --inter 256 --experts 8 --topk 2 --bytes 16M --samples 2'

knobs= # NAME=VALUE... of the simulation

# run OPTION...: JSON into $dir/out
run() {
	# Word splitting is meant.
	# shellcheck disable=SC2086
	timeout 600 env $knobs "$bench" device $small --json "$@" >"$dir/out" 2>"$dir/err"
}

# ordered PATH: best and median of a rate
ordered() {
	within "$(field "$1.best")" 0.000000001 1000000 "$1: best"
	within "$(field "$1.median")" 0.000000001 "$(field "$1.best")" "$1: the median is no better"
}

# product A B C NAME: of three fields, A = B * C within a hundredth
product() {
	within "$(awk -v a="$(field "$1")" -v b="$(field "$2")" -v c="$(field "$3")" 'BEGIN { print a / (b * c) }')" 0.99 1.01 "$4"
}

start_daemon --model "$sample" --writable-weights --threads 2
require $? 'a daemon' "$dir/daemon.log"
run --check --daemon "$socket"
require $? 'moe-bench device --check' "$dir/err"

is "$(field device.simulated)" 1 'the driver is said to be simulated'
is "$(field device.name)" 'Simulated GPU 0' 'the name of the device'
is "$(field 'failed.#')" 0 'nothing has failed'
within "$(field 'link.#')" 1 4 'sizes of copies'
for way in pinned_gbs batched_gbs zero_copy_gbs managed_gbs; do
	ordered "link.0.$way"
done

is "$(field lane.model) $(field lane.steps)" 'tinymoe 4' 'lanes: the model, and the steps'
for what in step_us work_us bare_hop_us; do
	within "$(field "lane.$what.p99")" "$(field "lane.$what.p50")" 100000000 "lane.$what"
done
within "$(awk -v s="$(field lane.step_us.p50)" -v w="$(field lane.work_us.p50)" -v r="$(field lane.round_trip_us.p50)" \
	'BEGIN { print s - w - r }')" -0.01 0.01 'the round trip is the step without its commands'

is "$(field lane_copy.model) $(field lane_copy.steps)" 'tinymoe 4' 'the same lane with answers that are copied first'
for what in step_us work_us bare_hop_us; do
	within "$(field "lane_copy.$what.p99")" "$(field "lane_copy.$what.p50")" 100000000 "lane_copy.$what"
done
within "$(field 'answers.#')" 2 5 'answers: sizes'
for way in read_us copy_us; do
	within "$(field "answers.1.$way.p50")" 0.000001 100000000 "answers.$way"
done
is "$(field answers.1.tokens) $(field answers.1.bytes)" '16 8192' 'an answer of 16 tokens'

is "$(field fills.0.model) $(field fills.0.how) $(field fills.0.tp_size)" 'tinymoe pull 1' 'fills by pull'
ordered fills.0.gbs
ordered fills.0.bare_gbs
ordered fills.0.step_gbs
product fills.0.gbs.best fills.0.bare_gbs.best fills.0.share 'their share of bare copies'

is "$(field overlap.0.tokens) $(field overlap.0.in_flight) $(field overlap.1.in_flight)" '4 1 2' 'overlap: one step, and two'
product overlap.0.t_step_us overlap.0.t_ideal_us overlap.0.step_over_ideal 'a step over the ideal one'
within "$(awk -v w="$(field overlap.0.t_wait_us)" -v d="$(field overlap.0.device_us)" -v c="$(field overlap.0.cpu_us)" \
	-v i="$(field overlap.0.t_ideal_us)" 'BEGIN { m = w > d ? w : d; print (m > c ? m : c) / i }')" 0.99 1.01 \
	'which is the longest of copies, device and CPU'

is "$(field shape.hidden) $(field shape.inter) $(field shape.experts) $(field shape.topk)" '256 256 8 2' 'the shape of the layer'
is "$(field 'experts.#')" 15 'five formats, three numbers of tokens'
for i in 0 2 3 8 11 14; do
	ordered "experts.$i.weight_gbs"
	ordered "experts.$i.tflops"
	product "experts.$i.weight_gbs.best" "experts.$i.read_limit_gbs" "experts.$i.share_of_read" 'the share of reading'
	product "experts.$i.tflops.best" "experts.$i.mma_tflops" "experts.$i.share_of_dense" 'the share of dense products'
	within "$(field "experts.$i.max_rel_error")" 1e-9 0.05 'the reference confirms the result'
done
is "$(field experts.0.format) $(field experts.0.path) $(field experts.0.dense_limit)" 'bf16 decode mma' 'one token is decode'
is "$(field experts.14.format) $(field experts.14.path) $(field experts.14.cublas_tflops)" 'mxfp4 prefill null' 'sixteen are prefill here'
within "$(awk -v g="$(field experts.0.weight_gbs.best)" -v us="$(field experts.0.us.best)" \
	'BEGIN { print g * us * 1e3 / (2 * 2 * 3 * 256 * 256) }')" 0.98 1.02 'each expert that is chosen counts once'
is "$(field 'goals.#')" 5 'each goal of the device is judged'
for i in 0 1 2 3 4; do
	is "$(field goals.$i.met)" "$(awk -v f="$(field goals.$i.found)" -v e="$(field goals.$i.expected)" -v l="$(field goals.$i.limit)" \
		'BEGIN { print (l == "least" ? f >= e : f <= e)  ? 1 : 0 }')" "$(field goals.$i.what)"
done

# -- what is missing, and what fails ------------------------------------------------------------------------------

run --format int8 --daemon "$dir/nobody"
is $? 0 'without a daemon the rest is measured' "$dir/err"
is "$(field 'experts.#') $(field lane) $(field 'fills.#')" '3 no lane no fills.#' 'kernels, but no lane and no fill'
grep -q '"what": "fills", "why": "[^"]*no daemon listens' "$dir/out"
ok $? 'and it is said why' "$dir/out"

knobs=CUSIM_FAIL=cuStreamWriteValue32:3+
run --format int8 --daemon "$socket"
is $? 1 'a part that fails is a failure' "$dir/err"
within "$(field 'failed.#')" 1 9 'which is noted'
within "$(field 'link.#')" 1 4 'and what was measured before is printed'
knobs=CUSIM_FAIL=cuMemHostRegister:1
run --daemon "$socket"
is $? 1 'memory that cannot be registered' "$dir/err"
grep -q 'cannot register host memory' "$dir/err"
ok $? 'it says so' "$dir/err"

for wrong in '--device host' '--device cudas' '--device cuda:x' '--samples 65' '--bytes 1M'; do
	# shellcheck disable=SC2086
	"$bench" device $wrong >"$dir/text" 2>&1
	is $? 2 "$wrong: a usage error" "$dir/text"
done
"$bench" device --device cuda:7 >"$dir/text" 2>&1
is $? 1 'a device that is not there' "$dir/text"

# shellcheck disable=SC2086
timeout 600 "$bench" device $small --format mxfp4 --daemon "$socket" >"$dir/text" 2>"$dir/err"
is $? 0 'as text' "$dir/err"
for line in 'THE DRIVER IS SIMULATED' '^link, GB/s' '^lane, empty' '^fills, GB/s' '^overlap, us' '^experts of custom'; do
	grep -q "$line" "$dir/text"
	ok $? "a line for $line" "$dir/text"
done

# -- scripts/bench-device.sh --------------------------------------------------------------------------------------

stop_daemon
mkdir "$dir/bin"
printf '#!/bin/sh\nexit 9\n' >"$dir/bin/nvidia-smi"
chmod +x "$dir/bin/nvidia-smi"
real_path=$PATH
PATH=$dir/bin:$PATH
export MOE_BUILD="$build"
scripts/bench-device.sh >"$dir/text" 2>&1
is $? 0 'the script without a GPU' "$dir/text"
is "$(cat "$dir/text")" 'bench-device: skipped: no NVIDIA GPU and driver here (nvidia-smi lists none)' 'says that it was skipped'

printf '#!/bin/sh\necho Simulated, 1.2.3\n' >"$dir/bin/nvidia-smi"
cp docs/PERFORMANCE.md "$dir/page.md"
# shellcheck disable=SC2086
! timeout 800 scripts/bench-device.sh --model "$sample" --out "$dir/page.md" --chart "$dir/chart.json" -- $small --format int8 \
	>"$dir/text" 2>&1
ok $? 'the script on a simulated driver fails' "$dir/text"
grep -q 'the driver is simulated: its figures say nothing' "$dir/text"
ok $? 'because its figures say nothing' "$dir/text"
cmp -s docs/PERFORMANCE.md "$dir/page.md" && [ ! -e "$dir/chart.json" ]
ok $? 'and writes nothing'
PATH=$real_path

# What the page would be: the figures are not kept.
sed 's/"simulated": true/"simulated": false/' "$build/bench-device.json" >"$dir/real.json"
perl scripts/bench-device-table.pl "$dir/real.json" 1.2.3 clean 'not installed' >"$dir/table" 2>"$dir/err"
is $? 0 'the table' "$dir/err"
grep -q '^## GPU$' "$dir/table" && grep -q 'Simulated GPU 0, driver 1.2.3, CUDA ' "$dir/table" &&
	grep -q 'memcheck clean, racecheck not installed' "$dir/table"
ok $? 'says on what it was measured' "$dir/table"
is "$(grep -c '^| bench | pull | 1 |' "$dir/table") $(grep -c '^| int8 | ' "$dir/table")" '1 3' 'has the fills and the kernels'
is "$(awk -F'|' '/^\|/ && NF != n && n { print NR } { n = /^\|/ ? NF : 0 }' "$dir/table")" '' 'its rows have as many cells as their heads'
finish
