#!/bin/sh
# SPDX-License-Identifier: MIT
#
# tier - a model that is larger than its memory: the same score, whoever is killed meanwhile; files that change or cannot
# be read are errors, never weights; and everything says that the model is tiered.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

half=9M # of 18 MiB: 96 of 192 records
head -c "$(amount 8000)" "$sample/text.txt" >"$dir/text"
child() { ps -o pid= --ppid "$daemon" | tr -d ' '; }

score() { # OUT OPTION...
	out=$1
	shift
	"$worker" score --model "$sample" --daemon "$socket" --text "$dir/text" --json "$@" >"$out" 2>"$out.err"
}

# is_again: by another daemon than the first.
is_again() { [ -n "$(child)" ] && [ "$(child)" != "$first" ] && models; }

models() { "$moectl" --socket "$socket" models --json >"$dir/models.json"; }

tier() { json "$dir/models.json" "models.0.tier.$1"; }

same() { # FOUND EXPECTED PART NAME: scores
	within "$(echo "$(json "$1" nll_per_token) $(json "$2" nll_per_token)" | awk '{ print ($1 - $2) / $2 }')" "-$3" "$3" "$4"
}

# -- all there: the score to compare with --------------------------------------------------------------------------

start_daemon --model "$sample" --pool-max 18M
require $? 'a model that just fits' "$dir/daemon.log"
models
is "$(tier frames)" 'no models.0.tier.frames' 'is not tiered'
! grep -q tiered "$dir/daemon.log"
ok $? 'and nothing says so' "$dir/daemon.log"
digest=$(json "$dir/models.json" models.0.digest)
# shellcheck disable=SC2317 # score_for calls it
worker_scores() { "$worker" score --model "$sample" --daemon "$socket" --text "$dir/text" --json --experts cpu; }
score_for 1000 "$dir/whole" worker_scores # time for some kills, further down
is $? 0 'its score' "$dir/whole.err"
stop_daemon
is $? 0 'the daemon ends with 0'

# -- half of it ----------------------------------------------------------------------------------------------------

start_daemon --model "$sample" --pool-max $half
require $? 'half of the memory' "$dir/daemon.log"
grep -q 'tinymoe: tiered: 96 of 192 records' "$dir/daemon.log"
ok $? 'the log says that it is tiered' "$dir/daemon.log"
models
is "$(json "$dir/models.json" models.0.digest)" "$digest" 'the digest is that of the whole model'
is "$(json "$dir/models.json" models.0.bytes)" 10485760 'its pool file is half as large, in whole pages'
is "$(tier frames)/$(tier records)/$(tier ready)" 96/192/96 'each frame has a record'
score "$dir/half" --experts cpu
is $? 0 'a score' "$dir/half.err"
is "$(json "$dir/half" nll_per_token)" "$(json "$dir/whole" nll_per_token)" 'it is the same'
score "$dir/push" --experts cache --slots 8
is $? 0 'a score with a cache that the daemon fills' "$dir/push.err"
same "$dir/push" "$dir/whole" 1e-5 'it is the same'
jobs=
for rank in 1 2 3 4; do
	score "$dir/four$rank" --experts cpu &
	jobs="$jobs $!"
	started="$started $!"
done
for job in $jobs; do
	wait "$job" || ok 1 'one of four workers' "$dir/daemon.log"
	forget "$job"
done
for rank in 1 2 3 4; do
	is "$(json "$dir/four$rank" nll_per_token)" "$(json "$dir/whole" nll_per_token)" "worker $rank of four at a time: the same score"
done
models
within "$(tier misses)" "$(amount 1000)" 1e9 'records were missing'
within "$(tier evictions)" "$(amount 1000)" 1e9 'and others made room'
within "$(tier reads)" "$(tier evictions)" "$(tier misses)" 'a record that several wait for is read once'
is "$(tier pinned)/$(tier leased)/$(tier waiting)/$(tier reading)" 0/0/0/0 'nothing is held when all is quiet'
is "$(tier failures)" 0 'no read failed'
"$moectl" --socket "$socket" status --json >"$dir/status.json"
is "$(json "$dir/status.json" tiered)/$(json "$dir/status.json" pool_max)" 1/9437184 'status --json counts it'
within "$(json "$dir/status.json" weight_bytes_read)" "$(tier read_bytes)" 1e12 'and what was read'
for verb in status models stats; do
	"$moectl" --socket "$socket" $verb >"$dir/$verb.out"
	grep -q 'tiered' "$dir/$verb.out"
	ok $? "moectl $verb says that it is tiered" "$dir/$verb.out"
done
score "$dir/pull" --experts cache --slots 8 --fill pull
is $? 77 'a device cannot pull its records'
grep -q 'tiered.*MOE_FILL_PUSH' "$dir/pull.err"
ok $? 'the error names the way out' "$dir/pull.err"

# -- policies --------------------------------------------------------------------------------------------------------

for policy in lfu lfu-decay lfru ema mrs arc s3-fifo sieve ebco-soft ebco-hard lru; do
	score "$dir/policy" --experts cpu &
	job=$!
	started="$started $job"
	"$moectl" --socket "$socket" set-policy tinymoe $policy 2>"$dir/err"
	is $? 0 "the policy is $policy while a worker scores" "$dir/err"
	wait "$job"
	forget "$job"
	same "$dir/policy" "$dir/whole" 1e-5 "$policy: the same score"
	"$moectl" --socket "$socket" models >"$dir/models.out"
	grep -q "tiered (--pool-max): $policy," "$dir/models.out"
	ok $? "moectl models says $policy" "$dir/models.out"
done
"$moectl" --socket "$socket" set-policy tinymoe mru 2>"$dir/err"
is $? 1 'a policy that is none is refused'
grep -q 'lru, lfu.*expected' "$dir/err"
ok $? 'the error names those that there are' "$dir/err"
stop_daemon
is $? 0 'the daemon ends with 0'

# -- kills -----------------------------------------------------------------------------------------------------------

if have_proc; then
	export MOE_CRASH_PLAN=/dev/null # kills come at any moment: the keeper counts none of them
	start_daemon --keep --model "$sample" --pool-max $half
	require $? 'the daemon has a keeper' "$dir/daemon.log"
	models
	ready=$(tier ready)
	first=$(child)
	kill -9 "$first"
	wait_for is_again
	is_again
	ok $? 'killed while quiet, it is there again' "$dir/daemon.log"
	is "$(tier ready)" "$ready" 'each frame still has its record'
	"$moectl" --socket "$socket" status --json >"$dir/status.json"
	is "$(json "$dir/status.json" weight_bytes_read)" 0 'no weights were read again'
	for experts in cpu cache; do
		kills=0
		score "$dir/killed" --experts $experts &
		job=$!
		started="$started $job"
		while kill -0 "$job" 2>/dev/null && [ $kills -lt 20 ]; do
			victim=
			if [ $experts = cache ]; then # a worker that will be killed as well
				"$worker" score --model "$sample" --daemon "$socket" --text "$dir/text" --experts cpu >"$dir/victim" 2>&1 &
				victim=$!
				started="$started $victim"
			fi
			sleep 0.2
			if [ $((kills % 4)) = 3 ]; then
				kill -USR2 "$daemon"
			else
				kill -9 "$(child)" 2>/dev/null
			fi
			if [ "$victim" ]; then
				kill -9 "$victim" 2>/dev/null
				wait "$victim" 2>/dev/null
				forget "$victim"
			fi
			kills=$((kills + 1))
		done
		wait "$job"
		is $? 0 "$experts: a score although the daemon ended $kills times" "$dir/killed.err"
		forget "$job"
		same "$dir/killed" "$dir/whole" 1e-5 "$experts: the same score"
		within $kills 3 100000 "$experts: the daemon did end"
	done
	wait_for models
	wait_for have_sessions 0
	models
	is "$(tier pinned)/$(tier leased)/$(tier waiting)" 0/0/0 'nothing is held when all is over'
	is "$(tier failures)" 0 'no read failed'
	stop_daemon
	is $? 0 'the daemon ends with 0'
	unset MOE_CRASH_PLAN
else
	skip 'needs /proc'
fi

# -- files that change -----------------------------------------------------------------------------------------------

cp -r "$sample" "$dir/model"
start_daemon --model "$dir/model" --pool-max $half --name tinymoe
require $? 'a model whose files will change' "$dir/daemon.log"
shard=$dir/model/model-00002-of-00002.safetensors
size=$(stat -c %s "$shard")
cp "$shard" "$dir/shard"
head -c 4000000 /dev/zero | tr '\0' 'x' | dd of="$shard" bs=64k seek=$((size - 5000000)) oflag=seek_bytes conv=notrunc 2>/dev/null
score "$dir/changed" --experts cpu
is $? 1 'a file was written to: the worker fails'
grep -q 'model-00002-of-00002.safetensors: offset [0-9]*: layer [0-9]* expert [0-9]* is not what was loaded' "$dir/daemon.log"
ok $? 'the log names file, offset, layer and expert, and the way out' "$dir/daemon.log"
kill -0 "$daemon"
ok $? 'the daemon lives'
models
within "$(tier failures)" 1 1e9 'and counts it'
cat "$dir/shard" >"$shard"
score "$dir/again" --experts cpu
is $? 0 'the file is as it was: the worker goes on' "$dir/again.err"
is "$(json "$dir/again" nll_per_token)" "$(json "$dir/whole" nll_per_token)" 'with the same score'
truncate -s $((size / 2)) "$shard"
score "$dir/cut" --experts cpu
is $? 1 'a file was cut: the worker fails'
grep -q 'model-00002-of-00002.safetensors: [0-9]* bytes found at offset [0-9]*, [0-9]* expected' "$dir/daemon.log"
ok $? 'the log says so' "$dir/daemon.log"
cat "$dir/shard" >"$shard"
score "$dir/again" --experts cpu
is $? 0 'put back, it is served again' "$dir/again.err"
is "$(json "$dir/again" nll_per_token)" "$(json "$dir/whole" nll_per_token)" 'with the same score'
models
failures=$(tier failures)
stop_daemon
is $? 0 'the daemon ends with 0'
# A line each, or counted in a later line, at the daemon's end at the latest.
sed -n 's/.*(and \([0-9]*\) failed reads before it)$/1 \1/p
	t
	s/.*: \([0-9]*\) more reads have failed for the causes above$/0 \1/p
	t
	/error: .*model-00002-of-00002.safetensors: /s/.*/1 0/p' "$dir/daemon.log" >"$dir/told"
is "$(awk '{ n += $1 + $2 } END { print n + 0 }' "$dir/told")" "$failures" 'the log tells of each failed read' "$dir/daemon.log"

# -- limits ----------------------------------------------------------------------------------------------------------

start_daemon --model "$sample" --pool-max 3538944
require $? 'the fewest frames: a layer and a token' "$dir/daemon.log"
models
is "$(tier frames)" 36 'they are 36'
score "$dir/few" --experts cpu
is "$(json "$dir/few" nll_per_token)" "$(json "$dir/whole" nll_per_token)" 'the same score' "$dir/few.err"
stop_daemon
timeout 60 "$expertd" --model "$sample" --socket "$socket" --pool-max 3538943 2>"$dir/err"
is $? 1 'one byte less is refused'
grep -q 'at least 36 needed.*allow 3538944 bytes or more' "$dir/err"
ok $? 'with the number that is needed' "$dir/err"
timeout 60 "$expertd" --model "$sample" --socket "$socket" --memory-max $half 2>"$dir/err"
is $? 1 'without --pool-max a model that does not fit is refused'
grep -q -e '--pool-max' "$dir/err"
ok $? 'and the way out is named' "$dir/err"
start_daemon --model "$sample" --pool-max 1G --memory-max $half
require $? 'what --memory-max leaves limits it as well' "$dir/daemon.log"
models
is "$(tier frames)" 96 'to as many frames'
stop_daemon
is $? 0 'the daemon ends with 0'
finish
