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
# Forms that tell sequences apart keep them, to the byte; the others say that they do not.
"$moectl" trace convert "$dir/decode.jsonl" "$dir/one.moetrc" --to moetrc 2>"$dir/err" &&
	perl -e 'local $/; open F, "<", $ARGV[0]; binmode F; my $d = <F>; my ($head, $steps) = unpack("a20 x4 V", $d);
		binmode STDOUT; print $head, pack("V", 3), substr($d, 24), pack("V", 0), substr($d, 24)' "$dir/one.moetrc" >"$dir/three.moetrc"
require $? 'three sequences, one of no steps' "$dir/err"
steps=$(field "$dir/shown.json" '$d->{sessions}[0]{steps} - 1')
"$moectl" trace show "$dir/three.moetrc" --json >"$dir/three.json" 2>"$dir/err"
is "$(field "$dir/three.json" '@{$d->{sequences}}, $d->{shape}{steps}')" "$steps 0 $steps $((2 * steps))" 'trace show says of how many steps' "$dir/err"
"$moectl" trace convert "$dir/three.moetrc" "$dir/three.moetrace" --to binary 2>"$dir/err" &&
	"$moectl" trace convert "$dir/three.moetrace" "$dir/three.again" --to moetrc 2>"$dir/err" && cmp "$dir/three.moetrc" "$dir/three.again" 2>"$dir/err"
ok $? 'to binary and back: the same file' "$dir/err"
is "$("$moectl" trace show "$dir/three.moetrace" --json >"$dir/t.json"; field "$dir/t.json" 'map { $_->{steps} } @{$d->{sessions}}')" \
	"$steps 0 $steps" 'each is a session'
"$moectl" trace convert "$dir/three.moetrc" "$dir/three.jsonl" --to jsonl 2>"$dir/err"
grep -q '3 sequences become one' "$dir/err"
ok $? 'jsonl: a note says that they become one' "$dir/err"
"$moectl" trace show "$dir/three.moetrc" >"$dir/shown" && grep -q "3 sequences of 0 to $steps steps" "$dir/shown" &&
	"$moectl" trace show --together "$dir/three.moetrc" >"$dir/shown" && grep -q "top-4, $steps steps" "$dir/shown"
ok $? 'shown for a person, also together' "$dir/shown"
for form in jsonl json binary; do
	"$moectl" trace show "$dir/form.$form" --json >"$dir/t.json" 2>"$dir/err"
	is "$(field "$dir/t.json" 'map { "$_->{pairs}/$_->{distinct}/$_->{most_asked}" } @{$d->{layers}}')" \
		"$(field "$dir/shown.json" 'map { "$_->{pairs}/$_->{distinct}/$_->{most_asked}" } @{$d->{layers}}')" "trace show of $form: the same layers" "$dir/err"
done

# An expert map is what plan makes of the loads.
"$moectl" trace convert "$dir/lru.moetrace" "$dir/map.json" --to expert-map --gpus 4 --replicas 40 2>"$dir/err" &&
	"$moectl" plan --policy swift --weights "$dir/loads.json" --gpus 4 --replicas 40 --map "$dir/planned.json" >/dev/null 2>"$dir/err" &&
	cmp "$dir/map.json" "$dir/planned.json" 2>"$dir/err"
ok $? 'to an expert map: as plan --policy swift has it' "$dir/err"
"$moectl" trace show "$dir/map.json" >"$dir/shown" 2>"$dir/err" && grep -q '^6 layers on 4 devices of 10 slots, 32 experts' "$dir/shown"
ok $? 'which is shown' "$dir/err"
"$moectl" trace convert "$dir/lru.moetrace" "$dir/map.json" --to expert-map >/dev/null 2>"$dir/err"
is $? 2 'without --gpus: usage'
"$moectl" trace convert "$dir/lru.moetrace" "$dir/map.json" --to expert-map --gpus 5 2>"$dir/err"
is "$?/$(grep -c 'multiple of the 5 gpus' "$dir/err")" 1/1 'on 5 ranks: refused, with the option'
"$moectl" trace convert "$dir/lru.moetrace" - --to xml >/dev/null 2>"$dir/err"
is $? 2 'an unknown form: usage'

# Of a target that cannot be written it is the target that is named, and why.
for form in jsonl json moetrc binary loads; do
	"$moectl" trace convert "$dir/decode.jsonl" /dev/full --to $form 2>"$dir/err"
	is "$?/$(cat "$dir/err")" '1/moectl: /dev/full: cannot be written: No space left on device' "$form into a full disk" "$dir/err"
done
"$moectl" trace convert "$dir/lru.moetrace" /dev/full --to expert-map --gpus 4 >/dev/null 2>"$dir/err"
is "$?/$(grep -c '/dev/full: No space left on device' "$dir/err")" 1/1 'an expert map, too' "$dir/err"

# What stood there stays when nothing comes of it.
cp "$dir/form.jsonl" "$dir/kept"
chmod 640 "$dir/kept"
"$moectl" trace convert "$dir/lru.moetrace" "$dir/kept" --to xml 2>"$dir/err"
"$moectl" trace convert "$dir/lru.moetrace" "$dir/kept" --to moetrc 2>"$dir/err"
cmp "$dir/form.jsonl" "$dir/kept" 2>"$dir/err"
ok $? 'a form that is not known, or cannot say it: the file is as before' "$dir/err"
"$moectl" trace convert "$dir/lru.moetrace" "$dir/kept" --to json 2>"$dir/err"
cmp "$dir/form.json" "$dir/kept" 2>"$dir/err"
ok $? 'else it is replaced' "$dir/err"
is "$(stat -c %a "$dir/kept")/$(find "$dir" -name '.kept*')" 640/ 'with its mode, and nothing beside it'
"$moectl" --socket "$socket" trace record --output "$dir/kept" 2>"$dir/err"
is "$?/$(grep -c 'an empty file or none expected' "$dir/err")" 1/1 'no recording over what is there' "$dir/err"
cmp "$dir/form.json" "$dir/kept" 2>"$dir/err"
ok $? 'which is as before' "$dir/err"
"$moectl" --socket "$socket" trace record --model nobody --output "$dir/refused" 2>"$dir/err"
is "$?/$(find "$dir" -name refused)" 1/ 'a recording that is refused leaves no file' "$dir/err"
odd=$(printf '%s/odd\377' "$dir")
cp "$dir/lru.moetrace" "$odd"
"$moectl" trace show "$odd" --json >"$dir/t.json" 2>"$dir/err"
is "$?/$(field "$dir/t.json" '$d->{file} =~ m{/odd[?]$}')" 0/1 'a name that is not UTF-8 is in the document as far as it can' "$dir/err"

# Limits and wrong words.
record few --steps 3
generate --tokens 8 >/dev/null
wait "$recorder"
is $? 0 'three steps' "$dir/few.err"
is "$("$moectl" trace show "$dir/few.moetrace" --json >"$dir/few.json"; field "$dir/few.json" '$d->{sessions}[0]{steps}, $d->{end}')" \
	'3 steps' 'and no more'
record sized --max-bytes 4K
generate --tokens 24 >/dev/null
wait "$recorder"
is $? 0 'four KiB' "$dir/sized.err"
is "$("$moectl" trace show "$dir/sized.moetrace" --json >"$dir/sized.json"; field "$dir/sized.json" '$d->{end}, $d->{cut_off}, $d->{bytes} <= 4096, $d->{bytes} > 2048')" \
	'max-bytes 0 1 1' 'no more, and with an end' "$dir/sized.json"
is "$(stat -c %s "$dir/sized.moetrace")" "$(field "$dir/sized.json" '$d->{bytes}')" 'nor is the file larger'
"$moectl" --socket "$socket" trace record --max-bytes 5 --output "$dir/five" 2>"$dir/err"
is "$?/$(grep -c -e '5 bytes .*--max-bytes), at least 64 expected' "$dir/err")" 1/1 'of a file too small for its head the option is named' "$dir/err"
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
is "$? $(cat "$dir/shown")" '0 other.moetrc (moetrc): 24 layers of 32 experts, top-4, 0 steps' \
	'one of no sequences at all is shown as well' "$dir/err"
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
