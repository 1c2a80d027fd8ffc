#!/bin/sh
# SPDX-License-Identifier: MIT
#
# soak - a daemon under a mixed load whose parts are killed at random: it ends with the memory, the descriptors and the
# scores that it began with.
#
#   tests/soak.sh [--minutes N] [--kill-every S]
#
#   --minutes N     of load (default 30); fractions count, and 4320 are 72 hours
#   --kill-every S  seconds from one end of the daemon to the next, on average (default 30)
#
# The load: moe-worker scores in six ways, moe-bench attaches sessions, moectl asks; one client in four is killed. The
# daemon is killed, at times twice in a row, or exchanged by SIGUSR2 to its keeper. Each score must be the one from
# before. Then, in one life of the daemon, the load again for a fifth of the time, and a thousand sessions that come,
# outlive a kill, and go. Compared with all load stopped: restarted daemons with each other, without pages of files,
# and a life's beginning with its end. A line a minute; TAP; exit code 0: nothing failed, 1: something did, 2: usage.
# The programs are those below $MOE_BUILD (default: build).
# shellcheck disable=SC2317 # functions that are called by their names
minutes=30
kill_every=30
while [ "$#" -gt 0 ]; do
	case $1 in
	-h | --help)
		sed -n '6,19s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	--minutes | --kill-every)
		if ! echo "${2-}" | grep -Eqx '[0-9]+(\.[0-9]+)?' || [ -z "$(echo "$2" | tr -d 0.)" ]; then
			echo "soak: $1 needs a number above 0, found '${2-}' (try --help)" >&2
			exit 2
		fi
		case $1 in
		--minutes) minutes=$2 ;;
		--kill-every) kill_every=$2 ;;
		esac
		shift 2
		;;
	*)
		echo "soak: unknown option $1 (try --help)" >&2
		exit 2
		;;
	esac
done
MOE_SOURCE=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
# shellcheck source=tests/e2e/lib.sh
. "$MOE_SOURCE/tests/e2e/lib.sh"
patience=300 # whole scores beside each other, under kills

have_proc || skip_all 'needs /proc'

tokens=2560  # of a score
ways=6
sessions_max=1000

# -- what happens -------------------------------------------------------------------------------------------------

# One word a line for what happened, one line of text for each error.
note() { echo "$1" >>"$dir/events.$loop"; }
wrong() { echo "$(date +%H:%M:%S) $*" | tr '\n' ' ' | sed 's/ *$/\n/' >>"$dir/errors"; }
counted() { cat "$dir"/events.* 2>/dev/null | grep -cx "$1"; }
errors() { wc -l <"$dir/errors"; }

random() { # N: 0 to N - 1
	n=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
	echo $((n % $1))
}

seconds() { awk -v n="$(random 1000)" -v most="$1" 'BEGIN { print most * (n + 1) / 1000 }'; } # above 0, at most MOST

# attend COMMAND...: waits for it so that a signal to this loop reaches it too.
attend() {
	"$@" &
	job=$!
	wait "$job"
	code=$?
	job=
	return $code
}

# doomed COMMAND...: it is killed, unless it ends before.
doomed() {
	"$@" >/dev/null 2>&1 &
	job=$!
	sleep "$(seconds 1)"
	kill -9 "$job" 2>/dev/null && note killed
	wait "$job" 2>/dev/null
	job=
}

way() { # N: sets $options
	case $1 in
	0) options='--experts cpu' ;;
	1) options='--experts cache' ;;
	2) options='--experts cpu --tp 2' ;;
	3) options='--experts cache --fill pull' ;;
	4) options='--experts cpu --tp 2 --share group' ;;
	5) options='--experts cache --tp 2' ;;
	esac
}

# score OUT N
score() {
	way "$2"
	# Word splitting is meant.
	# shellcheck disable=SC2086
	attend timeout "$patience" "$worker" score --model "$sample" --text "$sample/text.txt" --limit $tokens --json \
		--daemon "$socket" $options >"$1" 2>"$1.err"
}

# same_score N FILE: sums by the pool do not depend on time; in a cache, which pairs the device sums up does, and it
# rounds otherwise. Alone and unkilled such scores differ by up to 1.5e-5.
same_score() {
	way "$1"
	case $options in
	*cache*) near=5e-5 ;;
	*) near=0 ;;
	esac
	awk -v a="$(json "$2" nll_per_token)" -v b="$(json "$dir/expected.$1" nll_per_token)" -v near=$near \
		'BEGIN { d = a / b - 1; exit !(d <= near && -d <= near) }'
}

# -- loops of the load --------------------------------------------------------------------------------------------

one_score() {
	which=$(random "$ways")
	way "$which"
	if [ "$(random 4)" = 0 ]; then
		# shellcheck disable=SC2086
		doomed "$worker" score --model "$sample" --text "$sample/text.txt" --daemon "$socket" $options
	elif ! score "$dir/score.$loop" "$which"; then
		wrong "score $options: exit code $code: $(cat "$dir/score.$loop.err")"
	elif ! same_score "$which" "$dir/score.$loop"; then
		wrong "score $options: $(json "$dir/score.$loop" nll_per_token), not $(json "$dir/expected.$which" nll_per_token)"
	else
		note score
	fi
}

one_attach() {
	if [ "$(random 4)" = 0 ]; then
		doomed "$bench" attach --hold 16 --seconds 1 --daemon "$socket"
	elif attend timeout "$patience" "$bench" attach --samples 16 --daemon "$socket" >"$dir/attach" 2>&1 &&
		attend timeout "$patience" "$bench" attach --hold 16 --seconds "$(seconds 1)" --daemon "$socket" \
			>"$dir/attach" 2>&1; then
		note attached
	else
		wrong "attach: exit code $code: $(cat "$dir/attach")"
	fi
	sleep "$(seconds 0.5)"
}

one_query() {
	verb=$(echo status stats models sessions | cut -d ' ' -f $((1 + $(random 4))))
	if attend timeout "$patience" "$moectl" --socket "$socket" "$verb" --json >"$dir/query" 2>&1 &&
		json "$dir/query" none >"$dir/query.read" 2>&1; then
		note query
	else
		wrong "moectl $verb: exit code $code: $(cat "$dir/query" "$dir/query.read")"
	fi
	sleep "$(seconds 0.4)"
}

# forever LOOP COMMAND: until $dir/stop is there.
forever() {
	loop=$1 job=
	trap 'kill $job 2>/dev/null; exit 143' TERM
	until [ -e "$dir/stop" ]; do
		"$2"
	done
}

start_load() {
	rm -f "$dir/stop"
	loops=
	for each in 1.one_score 2.one_score 3.one_attach 4.one_query; do
		forever "${each%.*}" "${each#*.}" &
		loops="$loops $!"
		started="$started $!"
	done
}

# Nothing is left on the daemon's side.
is_quiet() {
	"$moectl" --socket "$socket" status --json >"$dir/status.json" 2>"$dir/moectl.err" &&
		"$moectl" --socket "$socket" models --json >"$dir/models.json" 2>"$dir/moectl.err" &&
		[ "$(json "$dir/status.json" sessions) $(json "$dir/status.json" connections)" = '0 1' ] &&
		[ "$(json "$dir/models.json" models.0.sessions) $(json "$dir/models.json" models.0.leases)" = '0 0' ]
}

stop_load() {
	: >"$dir/stop"
	for process in $loops; do
		wait "$process"
		forget "$process"
	done
	wait_for is_quiet
	ok $? "$1: no session, connection or lease is left" "$dir/status.json"
}

# -- ends of the daemon -------------------------------------------------------------------------------------------

child() { ps -o pid= --ppid "$daemon" | tr -d ' '; }

is_other() {
	now=$(child)
	[ -n "$now" ] && [ "$now" != "$before" ]
}

# end_daemon SIGNAL: 9 to the daemon or USR2 to its keeper; returns when there is another one.
end_daemon() {
	before=$(child)
	if [ "$1" = USR2 ]; then
		kill -USR2 "$daemon" && upgrades=$((upgrades + 1))
	else
		kill -9 "$before" && kills=$((kills + 1))
	fi
	wait_for is_other || wrong "no other daemon came after signal $1"
}

end_at_random() {
	case $(random 4) in
	0) end_daemon USR2 ;;
	1)
		end_daemon 9
		sleep "$(seconds 0.02)" # the next one may still recover
		end_daemon 9
		;;
	*) end_daemon 9 ;;
	esac
}

logged() { grep -c "$1" "$dir/daemon.log"; }

# -- measures -----------------------------------------------------------------------------------------------------

rss() { awk '/^Rss:/ { print $2 }' "/proc/$1/smaps_rollup"; }

# Without the pages of programs and libraries: how many of those a new process maps depends on who read them before.
own() { awk '/^(Anonymous|Pss_Shmem):/ { n += $2 } END { print n }' "/proc/$1/smaps_rollup"; }

# What they are, without the numbers that make each socket another.
list_fds() { find "/proc/$1/fd" -mindepth 1 -printf '%l\n' 2>/dev/null | sed 's/\[[0-9]*\]//' | sort; }

open_fds() { list_fds "$1" | wc -l; }

fds() { echo "$(open_fds "$(child)") $(open_fds "$daemon")"; }

# What was closed last may still be on its way to the keeper.
are_settled() {
	fds_before=$(fds)
	sleep 0.3
	[ "$(fds)" = "$fds_before" ]
}

# measure NAME: KiB and descriptors of the daemon, then of its keeper
measure() {
	wait_for are_settled
	echo "$(rss "$(child)") $(rss "$daemon") $(fds)" >"$dir/measured.$1"
	echo "$(own "$(child)") $(own "$daemon") $(fds)" >"$dir/measured.$1.own"
	list_fds "$(child)" >"$dir/open.$1"
	list_fds "$daemon" >"$dir/open.$1.keeper"
	read -r a b c d <"$dir/measured.$1"
	read -r a_own b_own _ <"$dir/measured.$1.own"
	echo "# $1: daemon $a KiB, $a_own its own, $c descriptors; keeper $b KiB, $b_own its own, $d descriptors"
}

# A daemon that has just taken over and answered each way once.
measure_restarted() {
	end_daemon USR2
	wait_for is_quiet
	each_way 'restarted' "$dir/restarted"
	wait_for is_quiet
	measure "$1"
}

# at_most FOUND BASE NAME: 1 % more, and 256 KiB, by which a daemon of 23 MiB differs from start to start; or $slack KiB,
# of code and heap that are used for the first time. Memory of a sanitizer's is the sanitizer's.
slack=256
at_most() {
	if [ -n "${MOE_SANITIZED-}" ]; then
		skip "$3: not compared under a sanitizer"
	else
		within "$1" 1 $(($2 * 101 / 100 + slack)) "$3 at most 1 % and $slack above $2"
	fi
}

# same_size NAME FROM TO
same_size() {
	read -r rss_1 keeper_rss_1 fds_1 <"$dir/measured.$2"
	read -r rss_2 keeper_rss_2 fds_2 <"$dir/measured.$3"
	is "$fds_2" "$fds_1" "$1: as many descriptors in daemon and keeper" || {
		diff "$dir/open.${2%.own}" "$dir/open.${3%.own}"
		diff "$dir/open.${2%.own}.keeper" "$dir/open.${3%.own}.keeper"
	} | sed 's/^/#   /'
	at_most "$rss_2" "$rss_1" "$1: KiB of the daemon"
	at_most "$keeper_rss_2" "$keeper_rss_1" "$1: KiB of its keeper"
}

# each_way NAME OUT: with nothing beside it
each_way() {
	bad=0
	n=0
	while [ $n -lt $ways ]; do
		score "$2.$n" $n || bad=$((bad + 1))
		[ "$2" = "$dir/expected" ] || same_score $n "$2.$n" || bad=$((bad + 1))
		n=$((n + 1))
	done
	is $bad 0 "$1: the score in each of $ways ways"
}

# More at once than the load ever is: what the pool and the heap took for it must go back when the last session leaves.
crowd() {
	crowd=
	for each in $(seq 0 $((ways - 1))) $(seq 0 $((ways - 1))); do
		score "$dir/crowd.$each" "$each" &
		crowd="$crowd $!"
		started="$started $!"
	done
	wait_for_all "$crowd"
	is $bad 0 "$1: a crowd of scores"
	wait_for is_quiet
}

report() {
	process=$(child)
	echo "# minute $1: $(counted score) scores, $(counted attached) times attached, $(counted query) queries," \
		"$(counted killed) clients killed, daemon killed $kills times and exchanged $upgrades times," \
		"$(errors) errors; daemon $(rss "$process") KiB, $(open_fds "$process") descriptors;" \
		"keeper $(rss "$daemon") KiB, $(open_fds "$daemon")"
}

# under_load MINUTES KILL-EVERY: 0 is never
under_load() {
	start_ms=$(now_ms)
	end_ms=$(awk -v t="$start_ms" -v m="$1" 'BEGIN { printf "%.0f", t + 60000 * m }')
	minute=0
	next_ms=$(awk -v t="$start_ms" -v s="$(seconds "$2")" 'BEGIN { printf "%.0f", t + 1000 * s }')
	start_load
	while [ "$(now_ms)" -lt "$end_ms" ]; do
		sleep 0.1
		if [ "$2" != 0 ] && [ "$(now_ms)" -ge "$next_ms" ]; then
			end_at_random
			next_ms=$(awk -v t="$(now_ms)" -v s="$2" -v r="$(seconds "$2")" \
				'BEGIN { printf "%.0f", t + 1000 * (s / 2 + r) }')
		fi
		if [ "$(($(now_ms) - start_ms))" -ge $((60000 * (minute + 1))) ]; then
			minute=$((minute + 1))
			report $minute
		fi
	done
}

# -- a thousand sessions ------------------------------------------------------------------------------------------

held() { grep -q attached "$dir/hold"; }

# Eight descriptors a session are enough at each of the three who hold some, and the keeper counts twice.
sessions_at_once() {
	# shellcheck disable=SC3045
	most=$((($(ulimit -Hn) - 400) / 16))
	[ "$most" -lt $sessions_max ] && echo "$most" || echo $sessions_max
}

# thousand NAME [kill]: attached at once, or in groups where that needs more descriptors than may be open
thousand() {
	group=$(sessions_at_once)
	left=$sessions_max
	good=0
	while [ "$left" -gt 0 ]; do
		[ "$group" -le "$left" ] || group=$left
		: >"$dir/hold"
		"$bench" attach --hold "$group" --seconds $patience --daemon "$socket" >"$dir/hold" 2>&1 &
		holder=$!
		started="$started $holder"
		wait_for held || wrong "$group sessions: $(cat "$dir/hold")"
		[ -z "${2-}" ] || end_daemon 9
		wait_for have_sessions "$group" && good=$((good + group))
		kill -9 "$holder"
		wait "$holder" 2>/dev/null
		forget "$holder"
		wait_for is_quiet || wrong "$group sessions that have left: $(cat "$dir/status.json")"
		left=$((left - group))
	done
	is $good $sessions_max "$1, $(sessions_at_once) at a time, are there${2+ after a kill}"
}

# -- main ---------------------------------------------------------------------------------------------------------

: >"$dir/errors"
kills=0
upgrades=0
loop=0
# shellcheck disable=SC3045 # as POSIX has it since 2024
ulimit -n "$(ulimit -Hn)"
# Kills come at any moment: the keeper counts none of them.
export MOE_CRASH_PLAN=/dev/null
start_daemon --keep --model "$sample"
require $? 'the daemon has a keeper' "$dir/daemon.log"
each_way 'alone' "$dir/expected"
require $((bad > 0)) 'what to compare scores with'
thousand 'a thousand sessions' kill

measure_restarted first
under_load "$minutes" "$kill_every"
stop_load 'under kills'
measure_restarted last
same_size 'restarted' first.own last.own

thousand 'in one life, a thousand sessions'
measure thousand
slack=1024
same_size 'a first thousand sessions' last thousand
slack=256
thousand 'a second thousand sessions'
measure second
same_size 'a second thousand sessions' thousand second
crowd 'in one life'
under_load "$(awk -v m="$minutes" 'BEGIN { print m / 5 }')" 0
stop_load 'in one life'
thousand 'again a thousand sessions'
measure after
same_size 'in one life' thousand after

report end
is "$(errors)" 0 'no error' || sed 's/^/#   /' "$dir/errors"
is "$(logged 'the daemon died by')" "$kills" 'the daemon died as often as it was killed'
is "$(logged 'the daemon died by signal 9')" "$kills" 'and of nothing else'
is "$(logged 'has ended for its upgrade')" "$upgrades" 'it was exchanged as often as that was asked'
is "$(json "$dir/status.json" weight_bytes_read)" 0 'no weights were read again'
stop_daemon
is $? 0 'the daemon ends with 0'
finish
