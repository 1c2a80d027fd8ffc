# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2034 # the variables are for the scripts that source this
#
# lib.sh - what the end-to-end scripts share: TAP, the finished programs, a daemon to talk to, and a clean end.
#
# Each script works in a folder of its own ($dir) and leaves nothing: at its end all processes in $started are ended,
# and $dir is removed. The programs are those below $MOE_BUILD (default: build).
set -u

root=${MOE_SOURCE:-$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)} || exit 1
cd "$root" || exit 1
build=${MOE_BUILD:-build}
expertd=$build/daemon/moe-expertd
moectl=$build/tools/moectl
worker=$build/tools/moe-worker
bench=$build/tools/moe-bench
mkmodel=$build/tools/moe-mkmodel
sample=models/tinymoe

dir=$(mktemp -d "${TMPDIR:-/tmp}/moe-e2e.XXXXXX") || exit 1
socket=$dir/socket
patience=120 # seconds after which what has not come is an error
MOE_EXPERTD_CONFIG=/dev/null # what this machine's own daemon is to do concerns no test
export MOE_EXPERTD_CONFIG
soon_ms=40000 # what takes milliseconds has come by then, on a busy machine, under a sanitizer and by a watchdog too
started= # processes to end
daemon=  # the one that start_daemon started

cleanup() {
	code=$?
	trap '' HUP INT TERM
	[ "$code" = 0 ] || [ ! -f "$dir/daemon.log" ] || cat "$dir/daemon.log" >&2
	for process in $started; do
		kill "$process" 2>/dev/null
	done
	for process in $started; do
		wait "$process" 2>/dev/null
	done
	rm -rf "$dir"
	exit "$code"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# -- TAP ----------------------------------------------------------------------------------------------------------

count=0
failed=0

# ok STATUS NAME [FILE]: FILE is shown when it failed.
ok() {
	count=$((count + 1))
	if [ "$1" = 0 ]; then
		echo "ok $count - $2"
		return 0
	fi
	failed=$((failed + 1))
	echo "not ok $count - $2"
	[ -z "${3-}" ] || sed 's/^/#   /' "$3"
	return 1
}

# is FOUND EXPECTED NAME [FILE]: FILE is shown when they differ.
is() {
	if [ "$1" = "$2" ]; then
		ok 0 "$3"
	else
		ok 1 "$3" ${4+"$4"}
		echo "#   found $1, expected $2"
		return 1
	fi
}

# within FOUND LOW HIGH NAME: numbers, LOW <= FOUND <= HIGH
within() {
	if awk -v x="$1" -v a="$2" -v b="$3" 'BEGIN { exit !(x ~ /^[-+]?[0-9.]+([eE][-+]?[0-9]+)?$/ && x + 0 >= a && x + 0 <= b) }'; then
		ok 0 "$4 ($1)"
	else
		ok 1 "$4"
		echo "#   found $1, expected $2 to $3"
		return 1
	fi
}

skip() {
	count=$((count + 1))
	echo "ok $count # SKIP $*"
}

skip_all() {
	echo "1..0 # SKIP $*"
	exit 0
}

# What the rest of the script depends on: ends it, as a failure, when STATUS is not 0.
require() {
	ok "$@" || finish
}

finish() {
	echo "1..$count"
	[ "$failed" = 0 ]
	exit
}

# -- helpers ------------------------------------------------------------------------------------------------------

# In our process group: a signal that ends this script ends what it waits for.
timeout() { command timeout --foreground "$@"; }

now_ms() { perl -MTime::HiRes=time -e 'printf "%d\n", time() * 1000'; }

# json FILE PATH: one value, e.g. json models.json models.0.read_bytes; `#` instead of a name counts an array. What is
# not there is no null: "no models.0.read_bytes".
json() {
	perl -MJSON::PP -e '
		my ($file, $path) = @ARGV;
		open(my $in, "<", $file) or die "$file: $!\n";
		local $/;
		my $value = decode_json(<$in>);
		for my $step (split /\./, $path) {
			my $list = ref $value eq "ARRAY";
			my $known = $list ? $step eq "#" || $step =~ /^\d+$/ && $step < @$value
				: ref $value eq "HASH" && exists $value->{$step};
			print("no $path\n"), exit unless $known;
			$value = $step eq "#" ? scalar @$value : $list ? $value->[$step] : $value->{$step};
		}
		print $value // "null", "\n";
	' "$1" "$2"
}

# wait_for COMMAND...: until the command succeeds; fails after so long as no machine is slow.
wait_for() {
	until_ms=$(($(now_ms) + patience * 1000))
	until "$@"; do
		[ "$(now_ms)" -lt "$until_ms" ] || return 1
		sleep 0.05
	done
}

# score_for MS OUT COMMAND...: the command's words go to OUT, its errors to OUT.err, and $dir/text becomes so long that it
# takes at least MS milliseconds to score it, however fast the machine.
score_for() {
	score_ms=$1 score_out=$2
	shift 2
	while :; do
		score_began=$(now_ms)
		"$@" >"$score_out" 2>"$score_out.err" || return
		[ $(($(now_ms) - score_began)) -lt "$score_ms" ] || return 0
		cat "$dir/text" "$dir/text" >"$dir/twice"
		mv "$dir/twice" "$dir/text"
	done
}

# amount N: of work of which a quarter is enough under a sanitizer, which looks for other things than numbers.
amount() { echo $(($1 / (${MOE_SANITIZED:+3} + 1))); }
# slack X: a bound on scores, which differ more over fewer tokens.
slack() { awk -v x="$1" -v times="${MOE_SANITIZED:+4}" 'BEGIN { print (times ? times : 1) * x }'; }

have_proc() { [ -r /proc/self/smaps ]; }

# start_daemon OPTION...: returns when its models are loaded; its words are in $dir/daemon.log.
start_daemon() {
	rm -f "$dir/ready" # a daemon before this one may not have closed its end yet
	mkfifo "$dir/ready" || return 1
	"$expertd" --socket "$socket" --ready-fd 3 "$@" 3>"$dir/ready" 2>"$dir/daemon.log" >&2 &
	daemon=$!
	started="$started $daemon"
	read -r line <"$dir/ready" || return 1
}

# The sample's text over and over: work for longer than any test looks on.
long_text() {
	for copy in 1 2 3 4 5 6 7 8 9 10; do
		cat "$sample/text.txt" "$sample/text.txt" "$sample/text.txt" "$sample/text.txt" "$sample/text.txt"
	done >"$dir/long.txt"
}

# forget PROCESS: it has ended and was waited for.
forget() {
	rest=
	for process in $started; do
		[ "$process" = "$1" ] || rest="$rest $process"
	done
	started=$rest
}

# wait_for_all "PROCESS...": until they have ended; $bad of them not with 0.
wait_for_all() {
	bad=0
	for awaited in $1; do
		wait "$awaited" || bad=$((bad + 1))
		forget "$awaited"
	done
}

# daemon_dies WORKER NAME: kill -9 of the daemon ends that process, soon, with an error in $dir/err that names the daemon.
daemon_dies() {
	kill -9 "$daemon"
	before=$(now_ms)
	wait "$1"
	code=$?
	after=$(now_ms)
	forget "$1"
	wait "$daemon" 2>/dev/null
	forget "$daemon"
	is $code 1 "$2: the worker fails after kill -9 of the daemon" "$dir/err"
	within $((after - before)) 0 $soon_ms "$2: milliseconds until it has ended"
	grep -qi 'daemon' "$dir/err"
	ok $? "$2: it says why" "$dir/err"
}

# stop_daemon: returns its exit code; when it is not 0 the harness is told the daemon's words.
stop_daemon() {
	kill "$daemon" 2>/dev/null
	wait "$daemon"
	code=$?
	forget "$daemon"
	[ "$code" = 0 ] || cat "$dir/daemon.log" >&2
	return "$code"
}

sessions() {
	"$moectl" --socket "$socket" sessions --json >"$dir/sessions.json" 2>"$dir/moectl.err" &&
		json "$dir/sessions.json" 'sessions.#'
}

have_sessions() { [ "$(sessions)" = "$1" ]; }
