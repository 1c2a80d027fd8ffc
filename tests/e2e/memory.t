#!/bin/sh
# SPDX-License-Identifier: MIT
#
# memory - however many workers map the weights, there is one copy of them; and another tp_size reads nothing more.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

have_proc || skip_all 'no /proc here: shared memory cannot be measured'

# 4 KiB pages, because the kernel does not count hugetlb pages in Pss.
start_daemon --model "$sample" --pages 4k
require $? 'the daemon serves the sample from 4 KiB pages' "$dir/daemon.log"
"$moectl" --socket "$socket" models --json >"$dir/models.json" 2>"$dir/err"
require $? 'moectl models --json' "$dir/err"
bytes=$(json "$dir/models.json" models.0.bytes)
read_bytes=$(json "$dir/models.json" models.0.read_bytes)

# Which of daemon and workers map its pool files, and their proportional share of them, in KiB.
# shellcheck disable=SC2317 # is_touched calls it
pool_share() {
	# A mapping's fifth field is the file's inode number.
	awk '/ \/memfd:moe-pool/ { print $5 }' "/proc/$daemon/smaps" >"$dir/pools"
	for process in "$daemon" "$job" $(ps -o pid= --ppid "$job"); do
		awk -v process="$process" '
			FILENAME ~ /pools$/ { ours[$1] = 1; next }
			/^[0-9a-f]+-[0-9a-f]+ / { pool = $5 in ours }
			pool && /^Pss:/ { sum += $2; seen = 1 }
			END { if (seen) print process, sum }
		' "$dir/pools" "/proc/$process/smaps" 2>/dev/null
	done
}

# Shares of processes that are read one after the other add up when nothing changes meanwhile.
# shellcheck disable=SC2317 # wait_for calls it
is_touched() {
	pool_share >"$dir/share"
	[ "$(wc -l <"$dir/share")" -ge 5 ] && [ "$(awk '{ sum += $2 } END { print sum * 1024 }' "$dir/share")" -ge $((bytes / 2)) ] &&
		pool_share | cmp -s - "$dir/share"
}

attach() { # TP: a worker of that many ranks which copies from the mapped pool, at work
	"$worker" score --model "$sample" --text "$dir/long.txt" --experts cache --slots 16 --fill pull --tp "$1" \
		--daemon "$socket" --json >"$dir/score.json" 2>"$dir/err" &
	job=$!
	started="$started $job"
}

long_text
attach 4
wait_for have_sessions 4
ok $? 'four ranks are attached' "$dir/err"
wait_for is_touched
ok $? 'the daemon and four workers map the pool, and each has touched its part'
sed 's/^/# process, KiB: /' "$dir/share"
sum=$(awk '{ sum += $2 } END { print sum * 1024 }' "$dir/share")
within "$sum" $((bytes / 2)) $((bytes + bytes / 100)) "all shares together are at most one copy of $bytes bytes"
kill "$job"
wait "$job" 2>/dev/null
forget "$job"
wait_for have_sessions 0
ok $? 'all sessions end with their workers'

for tp in 1 2 4; do
	"$worker" score --model "$sample" --text "$sample/text.txt" --experts cache --fill pull --tp $tp --limit 256 \
		--daemon "$socket" --json >"$dir/score.json" 2>"$dir/err"
	ok $? "attached again with tp $tp" "$dir/err"
	"$moectl" --socket "$socket" models --json >"$dir/models.json"
	is "$(json "$dir/models.json" models.0.read_bytes)" "$read_bytes" "tp $tp: nothing more was read"
	is "$(json "$dir/models.json" models.0.bytes)" "$bytes" "tp $tp: the model takes no more memory"
done

stop_daemon
is $? 0 'the daemon ends with 0'
finish
