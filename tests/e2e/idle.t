#!/bin/sh
# SPDX-License-Identifier: MIT
#
# idle - a daemon with eight sessions that ask for nothing uses less than 5 ms of CPU time in 10 s; and each of many takes
# less than 48 KiB of its own memory, since what a session needs for requests is touched when there is one.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

have_proc || skip_all 'no /proc here: CPU time cannot be measured'

seconds=10
limit_us=5000
many=48 # their descriptors have room in the usual 1,024 files
limit_kib=48

start_daemon --model "$sample"
require $? 'the daemon serves the sample' "$dir/daemon.log"

# CPU time of all threads in microseconds: schedstat counts nanoseconds, where the kernel has it.
cpu_us() {
	if [ -r "/proc/$daemon/schedstat" ]; then
		cat "/proc/$daemon"/task/*/schedstat | awk '{ sum += $1 } END { printf "%d\n", sum / 1000 }'
	else
		awk -v hz="$(getconf CLK_TCK)" '{ sub(/^.*\) /, ""); printf "%d\n", ($12 + $13) * 1000000 / hz }' \
			"/proc/$daemon/stat"
	fi
}

# In the best of three times: on a busy machine what the last request woke goes to sleep late.
measure() { # NAME
	used=$((limit_us + 1)) rounds=0
	while [ $used -gt $limit_us ] && [ $rounds -lt 3 ]; do
		sleep 1
		before=$(cpu_us)
		sleep $seconds
		used=$(($(cpu_us) - before))
		rounds=$((rounds + 1))
	done
	within "$used" 0 $limit_us "$1: microseconds of CPU in $seconds s"
}

hold() { # SESSIONS
	"$bench" attach --hold "$1" --seconds 60 --daemon "$socket" >"$dir/bench" 2>&1 &
	holder=$!
	started="$started $holder"
	wait_for have_sessions "$1"
	require $? "$1 sessions are attached" "$dir/bench"
}

let_go() {
	kill "$holder"
	wait "$holder" 2>/dev/null
	forget "$holder"
	wait_for have_sessions 0
}

own_kib() { awk '/^RssAnon:/ { print $2 }' "/proc/$daemon/status"; }

hold 8
measure 'eight sessions that have never asked'
let_go
if [ -n "${MOE_SANITIZED-}" ]; then
	skip 'memory of many sessions: a sanitizer keeps what is given back'
elif grep -qs '\[always\]' /sys/kernel/mm/transparent_hugepage/enabled; then
	skip 'memory of many sessions: transparent huge pages are always on: untouched memory counts, too'
else
	before=$(own_kib)
	hold $many
	within $((($(own_kib) - before) / many)) 0 $limit_kib "$many sessions: KiB of the daemon's own memory for each"
	let_go
fi

"$worker" score --model "$sample" --text "$sample/text.txt" --experts cpu --limit 256 --daemon "$socket" --json \
	>"$dir/score.json" 2>"$dir/err"
ok $? 'a worker was served in between' "$dir/err"
measure 'after work'

stop_daemon
is $? 0 'the daemon ends with 0'
finish
