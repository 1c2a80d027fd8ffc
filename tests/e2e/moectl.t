#!/bin/sh
# SPDX-License-Identifier: MIT
#
# moectl - each verb explains itself with examples that it takes, refuses what it does not take, ends with the status of the
# table in moectl(1), and can be completed by shells.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

export MOE_EXPERTD_SOCKET="$dir/nobody"
"$moectl" --help >"$dir/help" 2>"$dir/err"
is $? 0 '--help' "$dir/err"
verbs=$(sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p' "$dir/help")
sed -n 's/^  \(-h, \)\{0,1\}\(--[a-z-]*\).*/\2/p' "$dir/help" >"$dir/options"
[ "$(echo "$verbs" | wc -w)" -ge 10 ] && [ "$(wc -l <"$dir/options")" -ge 9 ]
require $? 'it lists verbs and options' "$dir/help"

"$moectl" completion bash >"$dir/completion.bash"
cat >"$dir/complete" <<'END'
. "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_moectl
printf '%s\n' "${COMPREPLY[@]}"
END
# What bash offers for the last of these words.
offers() { bash "$dir/complete" "$dir/completion.bash" moectl "$@"; }

# words VERB: what it needs behind it.
words() { sed -n "s/^  $1 \([A-Z]*\( [A-Z]\{2,\}\)*\).*/\1/p" "$dir/help"; }

for verb in $verbs; do
	"$moectl" "$verb" --help >"$dir/out" 2>"$dir/err"
	is $? 0 "$verb --help" "$dir/err"
	grep -q "^Usage: moectl .*$verb" "$dir/out" && grep -q "^  .*moectl $verb" "$dir/out"
	ok $? "$verb --help has its usage and an example" "$dir/out"

	# What --help lists is taken, and anything else refused with 2: without a daemon nothing is done.
	sed -n 's/^  \(-h, \)\{0,1\}\(--[a-z-]*\).*/\2/p' "$dir/out" >"$dir/taken"
	wrong=
	while read -r option; do
		case $option in --help | --version) continue ;; esac
		case $option in
		--socket | --name | --svg | --config | --root | --policy | --capacity | --mode | --calibrate | --cost | --param | --model | \
			--output | --to | --weights | --case | --from | --map) value="=$dir/x" ;;
		--seconds | --steps | --max-bytes | --replicas | --groups | --nodes | --gpus) value="=1" ;;
		--isa) value="=ref" ;;
		--huge-pages) value="=1G" ;;
		--watch) value="=1" ;;
		*) value= ;;
		esac
		# shellcheck disable=SC2046 # no word, or some
		timeout 60 "$moectl" "$verb" $(words "$verb") "$option$value" >"$dir/out" 2>"$dir/err" </dev/null
		code=$?
		if grep -qxe "$option" "$dir/taken"; then
			! grep -q 'does not take' "$dir/err" || wrong="$wrong $option is listed, and refused;"
		else
			{ [ $code = 2 ] && grep -q "$verb does not take $option" "$dir/err"; } || wrong="$wrong $option is not listed, and taken ($code);"
		fi
	done <"$dir/options"
	is "$wrong" '' "$verb takes what its --help lists, and nothing else"

	if command -v bash >/dev/null 2>&1; then
		offers "${verb%?}" | grep -qx "$verb"
		ok $? "bash completes ${verb%?} to $verb"
		offers "$verb" '' | grep '^--' | sort >"$dir/offered"
		sort "$dir/taken" | diff "$dir/offered" - >"$dir/diff"
		ok $? "bash offers the options of $verb" "$dir/diff"
	fi
done

if command -v bash >/dev/null 2>&1; then
	is "$(offers simulate --policy epl)" '' 'bash offers no policy of plan to simulate'
	offers plan --policy epl | grep -qx eplb
	ok $? 'but to plan'
	mkdir -p "$dir/models/a model"
	is "$(offers load "$dir/models/a")" "$dir/models/a model" 'a folder whose name has a blank is one word'
	mkdir "$dir/models/folder"
	touch "$dir/models/one.gguf" "$dir/models/two.txt"
	is "$(offers load "$dir/models/" | sort | sed 's,.*/,,' | tr '\n' ' ')" 'a model folder one.gguf ' 'load: folders and GGUF files'
	is "$(offers trace rec)" record 'and what trace does'
fi

for shell in zsh fish; do
	"$moectl" completion $shell >"$dir/completion.$shell"
	missing=
	for verb in $verbs; do
		grep -qw "$verb" "$dir/completion.$shell" || missing="$missing $verb"
	done
	is "$missing" '' "$shell is told of all verbs"
	if command -v $shell >/dev/null 2>&1; then
		$shell -n "$dir/completion.$shell" 2>"$dir/err"
		ok $? "$shell reads it" "$dir/err"
	fi
done

# -- the table of exit statuses -----------------------------------------------------------------------------------

# exits STATUS WORD...
exits() {
	expected=$1
	shift
	"$moectl" "$@" >"$dir/out" 2>"$dir/err" </dev/null
	is $? "$expected" "moectl $*: $expected" "$dir/err"
	[ "$expected" = 0 ] || { [ "$(wc -l <"$dir/err")" = 1 ] && grep -q '^moectl: ' "$dir/err"; }
	ok $? 'what failed is said in one line' "$dir/err"
}

exits 0 --version
exits 2
exits 2 nonsense
exits 2 nonsense --help
exits 2 status more
exits 2 load
exits 2 stats --watch=0
exits 2 completion tcsh
exits 2 config --config ''
exits 2 doctor --config ''
exits 2 plan --policy foo
grep -q "policy: 'foo' found, eplb, .* or hot expected" "$dir/err"
ok $? 'a policy that there is not: those that there are' "$dir/err"
exits 2 trace convert /nowhere /nowhere --to foo
exits 2 simulate /nowhere --policy foo
exits 2 simulate /nowhere --mode foo
exits 2 simulate /nowhere --capacity foo
exits 2 simulate /nowhere --param foo
exits 2 simulate /nowhere --cost foo
exits 1 simulate /nowhere --policy lru,belady --mode pinned --capacity 4,8
# The others say the same of values: moe-expertd(8), moe-worker(1), moe-bench(1).
# code STATUS COMMAND...
code() {
	expected=$1
	shift
	timeout 60 "$@" >"$dir/out" 2>"$dir/err" </dev/null
	is $? "$expected" "${1##*/}$(shift && printf ' %s' "$@"): $expected" "$dir/err"
}
code 2 "$expertd" --config '' --version
code 2 "$worker" generate --model "$sample" --prompt a --device foo
code 2 "$worker" generate --model "$sample" --prompt a --slots x
code 1 "$worker" score --model "$sample" --text "$sample/text.txt" --window 100000
code 2 "$bench" load
code 2 "$bench" ring --transport foo
code 1 "$bench" load /nowhere/at/all
mkdir "$dir/llama"
echo '{"model_type": "llama"}' >"$dir/llama/config.json"
code 77 "$worker" generate --model "$dir/llama" --prompt a
if "$worker" generate --model "$sample" --prompt a --tokens 1 --device cuda >"$dir/out" 2>"$dir/err"; then
	skip 'there is a GPU'
else
	code 77 "$worker" generate --model "$sample" --prompt a --device cuda
fi
for verb in status stats models sessions; do
	exits 1 $verb
done
exits 1 top --once
exits 1 heat tiny
exits 1 unload tiny
exits 1 set-policy tiny lru
exits 1 load /nowhere/at/all
start_daemon --threads 1
require $? 'a daemon without a model' "$dir/daemon.log"

{
	timeout 30 "$moectl" --socket "$socket" stats --watch=0.05 2>"$dir/err"
	echo $? >"$dir/watched"
} | head -n 1 >/dev/null
is "$(cat "$dir/watched")" 1 'stats --watch ends when nobody reads it any more' "$dir/err"
export MOE_EXPERTD_SOCKET="$socket"
for verb in status stats models sessions; do
	exits 0 $verb
	exits 0 $verb --json
done
exits 1 heat tiny
exits 1 unload tiny
exits 1 load "$dir"
"$moectl" load "$sample" --name bar >"$dir/out" 2>&1
! LC_ALL=C grep -q "$(printf '[\r\033]')" "$dir/out"
ok $? 'without a terminal a load has no progress bar' "$dir/out"
exits 0 unload bar
if command -v script >/dev/null 2>&1; then
	script -qefc "\"$moectl\" load \"$sample\" --name bar" /dev/null >"$dir/out" 2>&1 </dev/null
	is "$?:$(grep -c "$(printf '\r\033\\[K')" "$dir/out")" 0:1 'on one there is, and it is wiped away at the end' "$dir/out"
	exits 0 unload bar
else
	skip 'script is not installed'
fi
exits 0 load "$sample" --name tiny
exits 0 heat tiny
exits 1 set-policy tiny lru
# Somebody else, whom the socket lets in: may ask, and changes nothing.
stranger() { setpriv --reuid 65534 --regid 65534 --clear-groups "$(realpath "$moectl")" --socket "$socket" "$@"; }
chmod 711 "$dir"
chmod 666 "$socket"
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null 2>&1 && stranger --version >/dev/null 2>&1; then
	stranger models >"$dir/out" 2>"$dir/err" && grep -q '^tiny ' "$dir/out"
	ok $? 'another user may ask' "$dir/err"
	for words in 'load /' 'unload tiny' 'set-policy tiny lru'; do
		# shellcheck disable=SC2086 # words
		stranger $words >"$dir/out" 2>"$dir/err"
		is "$?:$(grep -c "for root and the daemon's user (uid 0) only; you are uid 65534" "$dir/err")" 1:1 \
			"but not $words" "$dir/err"
	done
else
	skip 'another user: neither root nor setpriv, or no right to run moectl'
fi
exits 0 unload tiny
"$moectl" status >/dev/full 2>"$dir/err"
is $? 1 'where the output cannot be written: 1' "$dir/err"

# -- output that is lost ------------------------------------------------------------------------------------------

# lost NAME COMMAND...: it fails where nothing can be written, and says so in one line, and not that the disk is broken
lost() {
	name=$1
	shift
	"$@" >/dev/full 2>"$dir/err"
	is "$?:$(grep -c 'cannot write' "$dir/err"):$(grep -c 'Input/output error' "$dir/err")" 1:1:0 "$name: what is lost is told" "$dir/err"
}
for program in "$moectl" "$worker" "$bench" "$expertd"; do
	for option in --help --version; do
		lost "${program##*/} $option" "$program" $option
	done
done
lost 'moectl VERB --help' "$moectl" status --help
lost moe-mkmodel "$mkmodel" --help
for json in '' --json; do
	# shellcheck disable=SC2086 # a word, or none
	lost "moe-worker generate $json" "$worker" generate --model "$sample" --prompt a --tokens 2 $json
	# shellcheck disable=SC2086
	lost "moe-worker score $json" "$worker" score --model "$sample" --text "$sample/text.txt" $json
done
lost 'moe-bench policy' "$bench" policy --samples 1 --json
lost 'moe-bench plan' "$bench" plan --samples 1 --json
lost 'moe-bench ffn' "$bench" ffn --samples 1 --json --hidden 64 --inter 64 --experts 4 --topk 1 --bytes 1M

# -- a daemon that is stopped: its kernel still accepts connections -------------------------------------------------

kill -STOP "$daemon"
silent='status
stats
models
sessions
top --once
heat tiny
heat tiny --forget
unload tiny
set-policy tiny lru
trace stop
doctor'
n=0
asking=
# What takes as long as it takes waits on.
timeout 200 "$moectl" load "$sample" --name late >"$dir/late.out" 2>"$dir/late.err" </dev/null &
late=$!
timeout 200 "$moectl" trace record --seconds 1 --output "$dir/late.moetrace" >"$dir/record.out" 2>"$dir/record.err" </dev/null &
record=$!
timeout 200 "$worker" score --daemon "$socket" --model "$sample" --text "$sample/text.txt" --experts cpu >"$dir/worker.out" 2>"$dir/worker.err" </dev/null &
working=$!
timeout 200 "$bench" compute --samples 1 >"$dir/bench.out" 2>"$dir/bench.err" </dev/null &
timing=$!
started="$started $late $record $working $timing"
while read -r words; do
	n=$((n + 1))
	# shellcheck disable=SC2086 # words
	timeout 100 "$moectl" $words >"$dir/silent.$n" 2>"$dir/silent.$n.err" </dev/null &
	asking="$asking $!"
	started="$started $!"
done <<END
$silent
END
wait_for grep -q '^[a-z]* *kernel' "$dir/silent.$n" && ! grep -q '^[a-z]* *daemon ' "$dir/silent.$n"
ok $? 'doctor says what it knows of the machine while it waits for the daemon' "$dir/silent.$n"
n=0
for process in $asking; do
	n=$((n + 1))
	words=$(echo "$silent" | sed -n ${n}p)
	wait "$process"
	is $? 1 "of a daemon that is stopped $words gives up" "$dir/silent.$n.err"
	forget "$process"
	said=$dir/silent.$n.err
	[ "$words" != doctor ] || said=$dir/silent.$n
	grep -q "$socket: the daemon (pid $daemon) is there but has not answered for [0-9]* s: it is stopped, and kill -CONT $daemon lets" "$said"
	ok $? 'and says so, and what to type' "$said"
done
grep -q '^problem *daemon ' "$dir/silent.$n"
ok $? 'to doctor that is a problem' "$dir/silent.$n"
for err in late record; do
	wait_for grep -q 'no word' "$dir/$err.err"
	is "$(grep -c "^moectl: $socket: no word from the daemon (pid $daemon) for [0-9]* s: it is stopped, and kill -CONT $daemon lets .*; Ctrl-C .*ends moectl" \
		"$dir/$err.err")" 1 "$err: who waits on is told so" "$dir/$err.err"
done
for program in worker bench; do
	wait_for grep -q 'no word' "$dir/$program.err"
	is "$(grep -c "^moe-$program: no word from moe-expertd for [0-9]* s: is it stopped, .* Still waiting" "$dir/$program.err")" 1 \
		"so is who waits with moe-$program" "$dir/$program.err"
done
kill -CONT "$daemon"
wait "$late" && wait "$record"
is "$?:$(grep -c '^late ' "$dir/late.out"):$(grep -c '^moectl:' "$dir/late.err")" 0:1:1 'they get what they waited for, and were told once' "$dir/late.err"
forget "$late"
forget "$record"
wait "$working"
wait "$timing"
is "$(cat "$dir/worker.err" "$dir/bench.err" | grep -c 'no word')" 2 'and so do those, told once'
forget "$working"
forget "$timing"
exits 0 unload late
exits 0 status
stop_daemon
is $? 0 'the daemon ends'
finish
