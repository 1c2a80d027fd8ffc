#!/bin/sh
# SPDX-License-Identifier: MIT
#
# trace - what a real worker routes is recorded: the simulator finds in it what moectl stats says the worker's cache has
# found; every form gives the same runs; a worker or a daemon that is killed leaves a file that can be read.
# shellcheck source=tests/e2e/lib.sh disable=SC2016 # Perl's words
. "$(dirname -- "$0")/lib.sh"

# record NAME OPTION...: in the background, once the daemon has begun; its process is in $recorder.
record() {
	name=$1
	shift
	begun=$(grep -c 'recording what' "$dir/daemon.log")
	"$moectl" --socket "$socket" trace record --output "$dir/$name.moetrace" "$@" >"$dir/$name.out" 2>"$dir/$name.err" &
	recorder=$!
	wait_for began_again
}

# shellcheck disable=SC2317 # wait_for calls it
began_again() { [ "$(grep -c 'recording what' "$dir/daemon.log")" -gt "$begun" ]; }
# shellcheck disable=SC2317 # wait_for calls it
grown() { [ "$(stat -c %s "$dir/$1.moetrace")" -gt 20000 ]; }
# shellcheck disable=SC2317 # wait_for calls it
nobody() { "$moectl" --socket "$socket" sessions --json >"$dir/sessions" && [ "$(json "$dir/sessions" 'sessions.#')" = 0 ]; }
# shellcheck disable=SC2317 # wait_for calls it
ended() { "$moectl" trace show "$dir/$1.moetrace" | grep -q 'ended in order'; }

generate() {
	"$worker" generate --daemon "$socket" --model "$sample" --prompt 'The king said' --slots 6 --update 32 \
		--mode decode "$@" 2>"$dir/worker.err"
}

# field FILE EXPRESSION: of a JSON document, in Perl's words.
field() {
	perl -MJSON::PP -e 'open(my $in, "<", $ARGV[0]) or die; local $/; my $d = decode_json(<$in>);
		print join(" ", map { $_ // "none" } eval $ARGV[1]), "\n"; die $@ if $@' "$1" "$2"
}

start_daemon --model "$sample"

"$moectl" --socket "$socket" trace stop 2>"$dir/err"
is $? 1 'nothing to stop'
grep -q 'none is being recorded' "$dir/err"
ok $? 'it says so' "$dir/err"

for policy in lru ema mrs; do
	"$moectl" --socket "$socket" stats --json >"$dir/before.json"
	record "$policy" --model tinymoe
	generate --tokens 24 --policy "$policy" >"$dir/text"
	ok $? "a worker with $policy" "$dir/worker.err"
	"$moectl" --socket "$socket" trace stop 2>"$dir/err"
	ok $? 'stopped' "$dir/err"
	wait "$recorder"
	is $? 0 'the recording ends' "$dir/$policy.err"
	"$moectl" --socket "$socket" stats --json >"$dir/after.json"
	for when in before after; do
		field "$dir/$when.json" 'map { $_->{resident_pairs} }
			@{$d->{models}[0]{layers}}' >"$dir/$when"
	done
	"$moectl" simulate "$dir/$policy.moetrace" --policy "$policy" --capacity 6 --json >"$dir/simulated.json" 2>"$dir/err"
	ok $? "the recording is a trace ($policy)" "$dir/err"
	live=$(paste -d ' ' "$dir/before" "$dir/after" | awk '{ n = NF / 2; for (i = 1; i <= n; i++) printf("%s%d", (i == 1 ? "" : " "), $(n + i) - $i) }')
	is "$(field "$dir/simulated.json" 'map { $_->{hits_pairs} } @{($d->{results} // $d->{cases}[0]{results})->[0]{per_layer}}')" \
		"$live" "$policy: the simulator's hits are those of the worker's cache, layer by layer"
done

"$moectl" trace show "$dir/lru.moetrace" >"$dir/shown" 2>"$dir/err"
ok $? 'shown' "$dir/err"
grep -q 'ended in order' "$dir/shown"
ok $? 'with its end' "$dir/shown"
"$moectl" trace show "$dir/lru.moetrace" --json >"$dir/shown.json"
is "$(field "$dir/shown.json" '$d->{sessions}[0]{steps}, $d->{sessions}[0]{phases}{prefill}, $d->{end}, $d->{cut_off}, $d->{sessions}[0]{lost}')" \
	'24 1 stopped 0 0' 'a prefill and 23 more steps, nothing lost'
is "$(field "$dir/shown.json" '$d->{sessions}[0]{left} ? "left" : "there"')" left 'the worker has left'

# Each form and back is the same to the simulator.
totals() {
	"$moectl" simulate "$1" --policy lru,ema,belady --capacity 4,8 --json >"$dir/t.json" 2>"$dir/err" &&
		field "$dir/t.json" 'map { my $t = $_->{total}; map { "$_=$t->{$_}" } sort keys %$t } @{$d->{results} // $d->{cases}[0]{results}}'
}
want=$(totals "$dir/lru.moetrace")
for form in jsonl json binary; do
	"$moectl" trace convert "$dir/lru.moetrace" "$dir/form.$form" --to $form 2>"$dir/err"
	ok $? "to $form" "$dir/err"
	is "$(totals "$dir/form.$form")" "$want" "$form: the same runs" "$dir/err"
	"$moectl" trace convert "$dir/form.$form" "$dir/again" --to jsonl 2>"$dir/err"
	[ "$form" = json ] || cmp -s "$dir/again" "$dir/form.jsonl"
	ok $? "$form: the same trace, with its weights"
done
"$moectl" trace convert "$dir/lru.moetrace" "$dir/no.moetrc" --to moetrc 2>"$dir/err"
is $? 1 'a prefill is no moetrc'
grep -q 'moetrc has one' "$dir/err"
ok $? 'it says why' "$dir/err"
grep -v '"step": 0,' "$dir/form.jsonl" >"$dir/decode.jsonl"
"$moectl" trace convert "$dir/decode.jsonl" "$dir/decode.moetrc" --to moetrc 2>"$dir/err"
ok $? 'the decoding is' "$dir/err"
is "$(totals "$dir/decode.moetrc")" "$(totals "$dir/decode.jsonl")" 'moetrc: the same runs'
"$moectl" trace convert "$dir/lru.moetrace" - --to loads >"$dir/loads.json" 2>"$dir/err"
is "$(field "$dir/loads.json" 'my $n = 0; $n += $_ for map { @$_ } @$d; scalar(@$d), scalar(@{$d->[0]}), $n')" \
	"6 32 $(field "$dir/shown.json" 'my $n = 0; $n += $_->{pairs} for @{$d->{layers}}; $n')" 'loads: each pair once'
"$moectl" trace convert "$dir/lru.moetrace" - --to xml >/dev/null 2>"$dir/err"
is $? 1 'an unknown form'

# Limits and wrong words.
record few --steps 3
generate --tokens 8 >/dev/null
wait "$recorder"
is $? 0 'three steps' "$dir/few.err"
is "$("$moectl" trace show "$dir/few.moetrace" --json >"$dir/few.json"; field "$dir/few.json" '$d->{sessions}[0]{steps}, $d->{end}')" \
	'3 steps' 'and no more'
for words in 'record x' 'show' 'convert a b' 'record --steps 0' 'record --seconds x' 'record --max-bytes 5Q'; do
	# shellcheck disable=SC2086
	"$moectl" --socket "$socket" trace $words >/dev/null 2>"$dir/err"
	is $? 2 "trace $words: usage"
done

# Ctrl-C.
record ctrl
generate --tokens 4 >/dev/null
kill -INT "$recorder"
wait "$recorder"
is $? 0 'an interrupt ends it in order' "$dir/ctrl.err"
"$moectl" trace show "$dir/ctrl.moetrace" | grep -q 'ended in order'
ok $? 'with an end'

work_long() {
	exec "$worker" score --daemon "$socket" --model "$sample" --text "$dir/long.txt" --decode --slots 6 >/dev/null 2>&1
}

# kill -9 of a worker, of moectl, of the daemon.
record killed
long_text
work_long &
victim=$!
started="$started $victim"
wait_for grown killed
kill -9 "$victim"
wait "$victim" 2>/dev/null
wait_for nobody
kill -9 "$recorder"
wait "$recorder" 2>/dev/null
wait_for ended killed
ok $? 'a killed worker and a killed moectl leave a recording with an end'
record died
work_long &
victim=$!
started="$started $victim"
wait_for grown died
kill -9 "$daemon"
wait "$recorder"
is $? 1 'a killed daemon is told'
printf 'MOETRC1\0\30\0\0\0\40\0\0\0\4\0\0\0\0\0\0\0' >"$dir/other.moetrc"
"$moectl" trace show "$dir/other.moetrc" >"$dir/shown" 2>"$dir/err"
is "$? $(grep -c 'other.moetrc: no recording, which begins with MOETRACE; traces in other forms' "$dir/err")" '1 1' \
	'a trace in another form is none' "$dir/err"
"$moectl" trace show "$dir/died.moetrace" >"$dir/shown" 2>"$dir/err"
ok $? 'the file can be read' "$dir/err"
grep -q 'no end' "$dir/shown"
ok $? 'and has no end' "$dir/shown"
kill "$victim" 2>/dev/null
wait "$victim" 2>/dev/null
head -c 20001 "$dir/died.moetrace" >"$dir/cut.moetrace"
"$moectl" trace show "$dir/cut.moetrace" >"$dir/shown" 2>"$dir/err" && grep -q 'are passed over' "$dir/shown"
ok $? 'up to the last whole record' "$dir/shown"
"$moectl" simulate "$dir/cut.moetrace" --policy lru --capacity 4 >/dev/null 2>"$dir/err"
ok $? 'and simulated' "$dir/err"

finish
