#!/bin/sh
# SPDX-License-Identifier: MIT
#
# bench-daemon - moe-bench ring and load say what their page says about a running daemon: the fields of their JSON, and
# numbers that fit each other. Few samples of a small model: nothing here measures.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

field() { json "$dir/out" "$1"; }

# run VERB...: JSON into $dir/out
run() {
	timeout 120 "$bench" "$@" --daemon "$socket" --json >"$dir/out" 2>"$dir/err"
	require $? "moe-bench $*" "$dir/err"
}

# ordered PATH: percentiles of something that took time
ordered() {
	within "$(field "$1.p50")" 0.001 10000000 "$1: p50"
	within "$(field "$1.p99")" "$(field "$1.p50")" 10000000 "$1: p99"
	within "$(field "$1.p999")" "$(field "$1.p99")" 10000000 "$1: p99.9"
}

start_daemon --model "$sample" --threads 2
require $? 'a daemon' "$dir/daemon.log"

"$bench" restart --samples 1 --daemon "$socket" >"$dir/out" 2>"$dir/err"
is $? 1 'a daemon without a keeper is not killed'
grep -q 'no keeper' "$dir/err" && kill -0 "$daemon"
ok $? 'and the reason is said' "$dir/err"

run ring --samples 200
is "$(field sessions)" 1 'one session unless told'
for what in bare.shm_us bare.futex_us bare.eventfd_us bare.futex_idle_us bare.eventfd_idle_us nop.busy_us nop.idle_us agree.busy_us \
	fill.0.busy_us fill.0.idle_us fill.0.copy_us compute.0.busy_us compute.0.idle_us; do
	ordered "$what"
done
is "$(field compute.0.tokens) $(field compute.0.topk)" '1 4' 'COMPUTE of one token'
bytes=$(field fill.0.bytes)
ranks=$(field fill.0.tp_size)
"$moectl" --socket "$socket" models --json >"$dir/models" 2>"$dir/err"
record=$(json "$dir/models" models.0.record_bytes)
within "$bytes" $((record / ranks / 2)) $((record * 2 / ranks)) 'the slice is what its rank has of a record'
within "$(field nop.busy_ratio)" 0.001 1000000 'a ratio to shared memory'
within "$(field nop.idle_ratio)" 0.001 1000000 'and to a wake-up'

run compute --samples 2
within "$(field gb_per_s)" 0.000001 100000 'compute: the rate at which weights are read'

is "$(sessions)" 0 'all sessions are gone'
run ring --samples 100 --sessions 64
is "$(field sessions)" 64 '64 sessions take turns'
run ring --samples 100 --beside 2
is "$(field beside)" 2 'two programs compute on the same CPUs'
! pgrep -f "moe-bench.*$socket" >"$dir/left"
ok $? 'which end with it' "$dir/left"
ordered nop.busy_us
"$bench" ring --samples 100 --daemon "$socket" >"$dir/out" 2>"$dir/err"
ok $? 'as text' "$dir/err"
for line in 'NOP, 1 session ' 'COMPUTE of 1 token, top 4 ' 'FILL of '; do
	grep -q "^$line" "$dir/out"
	ok $? "a line for $line" "$dir/out"
done
"$bench" ring --sessions 0 --daemon "$socket" >"$dir/out" 2>&1
is $? 2 '--sessions 0 is a usage error'

run load "$sample" --samples 2
within "$(field raw_gbs)" 0.000001 100000 'the raw rate'
within "$(field memory_gbs)" 0.000001 100000 'the rate at which memory is made'
within "$(field gbs)" 0.000001 100000 'the rate of loading'
is "$(field rounds)" 2 'as many rounds as samples are asked for'
# The least and the largest pair's quotients enclose that of the medians.
within "$(field share)" "$(field share_min)" 100000 'its share is no less than in the worst round'
within "$(field share_max)" "$(field share)" 100000 'and no more than in the best'
within "$(field bytes)" "$record" 1000000000 'what was read'
if [ -n "${MOE_SANITIZED-}" ]; then
	within "$(field extra_bytes_peak)" 1048576 10000000000 "memory beyond the pool, a sanitizer's included"
elif have_proc; then
	within "$(field extra_bytes_peak)" 1048576 67108864 'memory beyond the pool: at most 64 MiB'
else
	is "$(field extra_bytes_peak)" null 'memory that cannot be seen'
fi
"$moectl" --socket "$socket" models --json >"$dir/models" 2>"$dir/err"
is "$(json "$dir/models" 'models.#')" 1 'what was loaded is unloaded'
mkdir "$dir/gguf"
"$mkmodel" quantize "$sample" "$dir/gguf/tiny.gguf" --format q8_0 >/dev/null 2>"$dir/err"
ok $? 'the model as GGUF' "$dir/err"
mv "$dir/gguf/tiny.gguf" "$dir/digest" # as in the Hugging Face cache: a link, to a name that says nothing
ln -s ../digest "$dir/gguf/tiny.gguf"
for path in "$dir/gguf/tiny.gguf" "$dir/gguf"; do
	run load "$path" --samples 1
	within "$(field raw_gbs)" 0.000001 100000 'the raw rate of GGUF'
	within "$(field share)" 0.000001 100000 'and a share of it'
done
"$moectl" --socket "$socket" load "$dir/gguf/tiny.gguf" >"$dir/out" 2>&1
is $? 0 'a GGUF file that is a link is loaded' "$dir/out"
"$moectl" --socket "$socket" models --json >"$dir/models" 2>"$dir/err"
is "$(json "$dir/models" models.1.name)" tiny.gguf 'by the name of the link'
stop_daemon

start_daemon --keep --model "$sample" --threads 2
require $? 'a daemon with a keeper' "$dir/daemon.log"
run restart --hold 4 --samples 3 --seconds 0.1
is "$(field sessions) $(field kills)" '4 3' 'four sessions, three kills'
within "$(field kill_to_ready_ms.p50)" 0.001 60000 'killed, and ready'
within "$(field kill_to_ready_ms.p99)" "$(field kill_to_ready_ms.p50)" 60000 'no sooner in the worst case'
within "$(field kill_to_completion_ms.p50)" 0.001 60000 'and a session goes on'
is "$(field weight_bytes_read)" 0 'no weights are read again'
finish
