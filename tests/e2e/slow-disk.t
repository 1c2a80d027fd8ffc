#!/bin/sh
# SPDX-License-Identifier: MIT
#
# slow-disk - a disk that stops answering while records of a tiered model are read: who waits for them waits, nobody else
# does, and the model can be unloaded meanwhile.
[ -n "${MOE_UNSHARED-}" ] || { command -v unshare >/dev/null && unshare -m true 2>/dev/null && MOE_UNSHARED=1 exec unshare -m sh "$0"; }
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

[ -n "${MOE_UNSHARED-}" ] || skip_all 'no mount namespace of its own can be had'
mkdir -p "$dir/disk/tinymoe" || exit 1
"$build/tests/slow-disk" "$PWD/$sample" "$dir/disk/tinymoe" >"$dir/served" 2>"$dir/err" &
disk=$!
started="$started $disk"
# shellcheck disable=SC2317 # wait_for calls it
is_served() { grep -q ready "$dir/served" || ! kill -0 "$disk" 2>/dev/null; }
wait_for is_served
grep -q ready "$dir/served" || {
	wait "$disk"
	[ $? = 77 ] || require 1 'a disk' "$dir/err"
	skip_all "no FUSE here: $(tail -n 1 "$dir/err")"
}

# shellcheck disable=SC2317 # wait_for calls it
is_stuck() {
	"$moectl" --socket "$socket" models --json >"$dir/models.json" 2>"$dir/err" &&
		[ "$(json "$dir/models.json" models.0.tier.reading)" -gt 0 ]
}

"$build/tools/moe-mkmodel" --out "$dir/other" --family qwen3_moe --layers 2 --hidden 64 --inter 32 --experts 4 --topk 2 \
	--heads 2 --kv-heads 1 --head-dim 32 --vocab 256 >"$dir/out" 2>&1
require $? 'another model' "$dir/out"
generate() { # FOLDER OUT
	timeout 60 "$worker" generate --daemon "$socket" --model "$1" --prompt NAME --tokens 8 --experts cpu >"$2" 2>"$dir/err"
}

start_daemon --model "$dir/disk/tinymoe" --pool-max 9M --model "$dir/other"
require $? 'a tiered model on that disk, and the other one' "$dir/daemon.log"
generate "$sample" "$dir/text"
ok $? 'it serves' "$dir/err"
generate "$dir/other" "$dir/first"
ok $? 'so does the other' "$dir/err"

kill -USR1 "$disk"
"$worker" score --daemon "$socket" --model "$sample" --text "$sample/text.txt" --experts cpu >"$dir/text" 2>"$dir/err" &
victim=$!
started="$started $victim"
wait_for is_stuck
ok $? 'the disk hangs: a worker waits for records' "$dir/models.json"
generate "$dir/other" "$dir/second"
ok $? "the other model's worker does not" "$dir/err"
cmp "$dir/first" "$dir/second" 2>"$dir/err"
ok $? 'and writes what it wrote before' "$dir/err"

kill -9 "$victim"
wait "$victim" 2>/dev/null
forget "$victim"
# shellcheck disable=SC2317 # wait_for calls it
nobody() { "$moectl" --socket "$socket" sessions --json >"$dir/sessions" && [ "$(json "$dir/sessions" 'sessions.#')" = 0 ]; }
wait_for nobody
ok $? 'killed, the worker is gone'
timeout 60 "$moectl" --socket "$socket" unload tinymoe 2>"$dir/err"
ok $? 'the model is unloaded while its reads hang' "$dir/err"
timeout 60 "$moectl" --socket "$socket" models --json >"$dir/models.json" 2>"$dir/err"
is "$(json "$dir/models.json" 'models.#')/$(json "$dir/models.json" models.0.name)" 1/other 'the daemon answers, and serves the other one' "$dir/err"
generate "$dir/other" "$dir/second"
ok $? 'a worker of it works' "$dir/err"

# A load that waits for the disk: nothing of its weights is read yet.
kill -USR2 "$disk"
sleep 1 # what was unloaded lets go of its reads
kill -USR1 "$disk"
# sh ignores SIGINT in what it begins in the background
perl -e '$SIG{INT} = "DEFAULT"; exec @ARGV' "$moectl" --socket "$socket" load "$dir/disk/tinymoe" >"$dir/loaded" 2>"$dir/load" &
load=$!
started="$started $load"
# shellcheck disable=SC2317 # wait_for calls it
is_loading() {
	"$moectl" --socket "$socket" models --json >"$dir/models.json" 2>"$dir/err" &&
		[ "$(json "$dir/models.json" loading.name)" = tinymoe ]
}
wait_for is_loading
ok $? 'a load waits for the disk: the models say so' "$dir/models.json"
is "$(json "$dir/models.json" loading.eta_ns)" null 'it is not known how long' "$dir/models.json"
"$moectl" --socket "$socket" status >"$dir/status" 2>&1
grep -q '^  loading .*/tinymoe: looking at its files$' "$dir/status"
ok $? 'moectl status says what it does' "$dir/status"
"$moectl" --socket "$socket" models >"$dir/models" 2>&1
grep -q '^    is being loaded: looking at its files$' "$dir/models"
ok $? 'moectl models, too' "$dir/models"
"$moectl" --socket "$socket" unload tinymoe >"$dir/out" 2>&1
is $? 1 'it cannot be unloaded yet' "$dir/out"
grep -q "'tinymoe' is being loaded" "$dir/out"
ok $? 'which is said' "$dir/out"
"$bench" ring --daemon "$socket" --model tinymoe --samples 10 >"$dir/out" 2>&1
grep -q "'tinymoe' is being loaded: attach when it is there" "$dir/out"
ok $? 'so does the daemon to who attaches' "$dir/out"
generate "$sample" "$dir/out"
is "$?:$(grep -c "'tinymoe' is being loaded: attach when it is there (moectl status says how far it is)" "$dir/err")" 1:1 \
	'and the worker passes it on' "$dir/err"
kill -INT "$load"
wait "$load" 2>/dev/null
is $? 130 'whoever interrupts moectl ends it'
forget "$load"
grep -q 'goes on without moectl: see moectl status' "$dir/load"
ok $? 'and reads that the load goes on' "$dir/load"
kill -USR2 "$disk"
# shellcheck disable=SC2317 # wait_for calls it
is_there() { "$moectl" --socket "$socket" models --json >"$dir/models.json" && [ "$(json "$dir/models.json" 'models.#')" = 2 ]; }
wait_for is_there
ok $? 'as it does' "$dir/models.json"
perl -MJSON::PP -e 'local $/; $d = decode_json(<>); $_->{read_ns} > 0 && $_->{read_ns} < $_->{load_ns} or exit 1 for @{$d->{models}}' \
	"$dir/models.json"
ok $? 'reading is a part of the load' "$dir/models.json"

stop_daemon
is $? 0 'the disk answers again: the daemon ends with 0' "$dir/daemon.log"
umount "$dir/disk/tinymoe" 2>"$dir/err"
wait "$disk"
is $? 0 'and the disk goes' "$dir/err"
forget "$disk"
finish
