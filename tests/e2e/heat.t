#!/bin/sh
# SPDX-License-Identifier: MIT
#
# heat - the daemon's counts of experts add up to its counts of layers, and moectl draws them; what routers chose lasts over
# daemons, with the keeper and in a folder.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

start_daemon --model "$sample" --name tiny
require $? 'the daemon serves the sample' "$dir/daemon.log"
LC_ALL=C "$moectl" --socket "$socket" heat tiny >"$dir/map" 2>"$dir/err"
ok $? 'heat before anything was used' "$dir/err"
grep -q '^192 never used$' "$dir/map"
ok $? 'nothing was' "$dir/map"

for options in '--experts cpu' '--experts cache --slots 8'; do
	# Word splitting is meant.
	# shellcheck disable=SC2086
	"$worker" score --model "$sample" $options --daemon "$socket" --text "$sample/text.txt" >"$dir/out" 2>"$dir/err"
	ok $? "score $options" "$dir/err"
done
"$moectl" --socket "$socket" heat tiny --json >"$dir/heat.json" 2>"$dir/err" &&
	"$moectl" --socket "$socket" stats --json >"$dir/stats.json" 2>"$dir/err"
require $? 'heat --json' "$dir/err"
# Each layer's pairs and copies, as its experts and as its counts in stats have them.
perl -MJSON::PP -MList::Util=sum -e '
	my ($heat, $stats) = map { open(my $in, "<", $_) or die; local $/; decode_json(<$in>) } @ARGV;
	my @counted = @{$stats->{models}[0]{layers}};
	my $wrong = @counted != @{$heat->{layers}};
	for my $layer (@{$heat->{layers}}) {
		my $served = (grep { $_->{layer} == $layer->{layer} } @counted)[0]{served};
		my ($pairs, $copies) = (sum(@{$layer->{pairs}}), sum(@{$layer->{copies}}));
		my $expected = $served->{fills} + $served->{leases};
		print "layer $layer->{layer}: $pairs pairs, $copies copies; expected $served->{pairs} and $expected\n";
		$wrong ||= $pairs != $served->{pairs} || $copies != $expected || !$pairs || !$copies || @{$layer->{pairs}} != 32;
	}
	exit $wrong;
' "$dir/heat.json" "$dir/stats.json" >"$dir/sums" 2>&1
ok $? 'experts add up to their layers, in pairs and in copies' "$dir/sums"

LC_ALL=C "$moectl" --socket "$socket" heat tiny >"$dir/map"
is "$(grep -cE '^ +[0-5] [ .+*#]{32}$' "$dir/map")" 6 'a line for each layer, a cell for each expert' "$dir/map"
NO_COLOR=1 LC_ALL=C.UTF-8 "$moectl" --socket "$socket" heat tiny >"$dir/map"
! grep -q "$(printf '\033')" "$dir/map"
ok $? 'no colours where there is no terminal'
if command -v script >/dev/null 2>&1; then
	# at_terminal [NO_COLOR=1]: on one of many colours
	at_terminal() {
		script -qefc "env TERM=xterm-256color LC_ALL=C.UTF-8 ${1-} \"$moectl\" --socket \"$socket\" heat tiny" \
			/dev/null >"$dir/map" 2>&1 </dev/null
		grep -q "$(printf '\033')" "$dir/map"
	}
	unset NO_COLOR
	at_terminal
	is $? 0 'colours on one' "$dir/map"
	at_terminal NO_COLOR=1
	is $? 1 'but not with NO_COLOR' "$dir/map"
else
	skip 'script is not installed'
fi
"$moectl" --socket "$socket" heat tiny --svg "$dir/heat.svg" 2>"$dir/err"
ok $? 'heat --svg' "$dir/err"
"$moectl" --socket "$socket" heat tiny --svg - >"$dir/heat2.svg" 2>"$dir/err"
cmp -s "$dir/heat.svg" "$dir/heat2.svg"
ok $? '--svg - is the same on standard output'
# Balanced, and all attributes quoted: XML.
perl -0777 -ne 's{<(\w+)(?: [\w:-]+="[^"<&]*")*(?:/>|>(?:[^<&]|&#\d+;)*</\1>)}{}g; exit !m{^<svg(?: [\w:-]+="[^"<&]*")*>\s*</svg>\s*$}' "$dir/heat.svg"
ok $? 'the picture is XML'

# -- what goes wrong ----------------------------------------------------------------------------------------------

"$moectl" --socket "$socket" heat nobody >"$dir/out" 2>"$dir/err"
is $? 1 'a model that is not loaded' "$dir/err"
"$moectl" --socket "$socket" heat tiny --svg "$dir/no/where" 2>"$dir/err"
is $? 1 'a file that cannot be written' "$dir/err"
"$moectl" --socket "$socket" heat tiny --svg "$dir/x" --json >"$dir/out" 2>"$dir/err"
is $? 2 'two forms at once are refused' "$dir/err"
"$moectl" --socket "$socket" heat 2>"$dir/err"
is $? 2 'a model must be named' "$dir/err"
stop_daemon
is $? 0 'the daemon ends'

# -- over the daemon's death ----------------------------------------------------------------------------------------

start_daemon --keep --model "$sample" --name tiny
require $? 'a daemon with a keeper' "$dir/daemon.log"
"$worker" score --model "$sample" --experts cpu --limit 1024 --daemon "$socket" --text "$sample/text.txt" >"$dir/out" 2>"$dir/err"
ok $? 'a score' "$dir/err"
"$moectl" --socket "$socket" heat tiny --json >"$dir/before.json" 2>"$dir/err"
ok $? 'its heat' "$dir/err"
before=$("$moectl" --socket "$socket" status --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
kill -9 "$before"
# shellcheck disable=SC2317 # wait_for calls it
another() {
	now=$("$moectl" --socket "$socket" status --json 2>/dev/null | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
	[ -n "$now" ] && [ "$now" != "$before" ]
}
wait_for another
ok $? 'another daemon serves' "$dir/daemon.log"
"$moectl" --socket "$socket" heat tiny --json >"$dir/after.json" 2>"$dir/err"
cmp -s "$dir/before.json" "$dir/after.json"
ok $? 'and goes on with the same heat' "$dir/after.json"
[ "$(sed -n 's/.*"steps": *\([0-9]*\).*/\1/p' "$dir/after.json")" -gt 0 ]
ok $? 'of so many steps' "$dir/after.json"
stop_daemon
is $? 0 'it ends'

# -- over the daemon's end, without a keeper -------------------------------------------------------------------------

# heat KEY [FILE]: a number of the model's document
heat() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" "${2-$dir/map.json}"; }
# cells FILE: the heat that lasts, of all layers
cells() { perl -MJSON::PP -e 'local $/; print join(",", map { @{$_->{heat}} } @{decode_json(<>)->{layers}})' "$1"; }

start_daemon --model "$sample" --name tiny
require $? 'a daemon without a folder' "$dir/daemon.log"
score() { "$worker" score --model "$sample" "$@" --daemon "$socket" --text "$sample/text.txt" >"$dir/out" 2>"$dir/err"; }
score --experts cpu --limit 1024
ok $? 'a score' "$dir/err"
LC_ALL=C "$moectl" --socket "$socket" heat tiny >"$dir/map"
grep -q 'steps, halved every 4096; only in memory' "$dir/map"
ok $? 'without a folder heat is only in memory' "$dir/map"
stop_daemon
is $? 0 'it ends'

mkdir "$dir/state"
start_daemon --model "$sample" --name tiny --state-directory "$dir/state"
require $? 'one with a folder' "$dir/daemon.log"
score --experts cpu
ok $? 'a score by the CPU' "$dir/err"
"$moectl" --socket "$socket" heat tiny --json >"$dir/cpu.json" 2>"$dir/err"
score --experts cache --slots 32
ok $? 'a score with all experts in slots' "$dir/err"
"$moectl" --socket "$socket" heat tiny --json >"$dir/map.json" 2>"$dir/err"
steps=$(heat steps "$dir/cpu.json")
is "$((2 * steps))" "$(heat steps)" 'it has as many steps, though the daemon saw few of its requests' "$dir/map.json"
perl -MJSON::PP -e '
	my ($cpu, $both) = map { open(my $in, "<", $_) or die; local $/; decode_json(<$in>) } @ARGV;
	my ($wrong, $any) = (0, 0);
	for my $l (0 .. $#{$cpu->{layers}}) {
		my ($a, $b) = ($cpu->{layers}[$l]{heat}, $both->{layers}[$l]{heat});
		$any += $_ for @$a;
		$wrong += abs($b->[$_] - 2 * $a->[$_]) for 0 .. $#$a;
	}
	# A token of many that lies between two experts may choose another one where others add up.
	print "$any pairs, $wrong differ\n";
	exit(!$any || $wrong > $any / 100);
' "$dir/cpu.json" "$dir/map.json" >"$dir/sums" 2>&1
ok $? 'and its routers have chosen the same, which heat has, hits included' "$dir/sums"
stop_daemon
is $? 0 'it ends'
saved=$(ls "$dir/state")
echo "$saved" | grep -qx 'heat-[0-9a-f]\{32\}'
ok $? 'its heat is in the folder' "$dir/daemon.log"

start_daemon --model "$sample" --name other --state-directory "$dir/state"
require $? 'another one, where the model has another name' "$dir/daemon.log"
"$moectl" --socket "$socket" heat other --json >"$dir/after.json" 2>"$dir/err"
is "$(cells "$dir/after.json")" "$(cells "$dir/map.json")" 'goes on with the same heat' "$dir/err"
# On one GPU a layer's load is all of its heat.
"$moectl" plan --policy eplb --weights "$dir/after.json" --gpus 1 --json >"$dir/plan.json" 2>"$dir/err"
perl -MJSON::PP -MList::Util=sum -e '
	my ($heat, $plan) = map { open(my $in, "<", $_) or die; local $/; decode_json(<$in>) } @ARGV;
	my @sums = map { sum(@{$_->{heat}}) } @{$heat->{layers}};
	print "@sums; @{$plan->{balance}{per_layer_max_gpu_load}}\n";
	exit(!$sums[0] || grep { $sums[$_] != $plan->{balance}{per_layer_max_gpu_load}[$_] } 0 .. $#sums);
' "$dir/after.json" "$dir/plan.json" >"$dir/sums" 2>&1
ok $? 'and moectl plan takes it for the loads, before anybody has asked this daemon for anything' "$dir/sums"
LC_ALL=C "$moectl" --socket "$socket" heat other >"$dir/map"
grep -q "^from $(heat steps) steps, halved every 4096; saved in $dir/state, 0 steps ago\$" "$dir/map"
ok $? 'and says where it is from' "$dir/map"
"$moectl" --socket "$socket" heat other --forget >"$dir/out" 2>"$dir/err"
is "$?:$(wc -c <"$dir/out")" 0:0 'heat --forget' "$dir/err"
"$moectl" --socket "$socket" heat other --json >"$dir/after.json" 2>"$dir/err"
is "$(heat steps "$dir/after.json"):$(cells "$dir/after.json" | tr -d '0,')" 0: 'nothing is hot any more' "$dir/after.json"
# shellcheck disable=SC2317 # wait_for calls it
removed() { [ -z "$(ls "$dir/state")" ]; }
wait_for removed
ok $? 'nor in the folder, soon'
"$moectl" --socket "$socket" heat other >"$dir/map" 2>"$dir/err"
is "$(tail -n 1 "$dir/map")" \
	'no step is counted yet, or was since --forget: these are pairs of the pool and copies since the load' \
	'what stands for it then is told' "$dir/map"
"$moectl" --socket "$socket" heat nobody --forget 2>"$dir/err"
is $? 1 'of a model that is not loaded there is nothing to forget' "$dir/err"
"$moectl" --socket "$socket" heat other --forget --json 2>"$dir/err"
is $? 2 'it prints nothing' "$dir/err"
stop_daemon
is $? 0 'it ends'

printf 'not heat' >"$dir/state/$saved"
start_daemon --model "$sample" --name tiny --state-directory "$dir/state" --heat-steps 8
require $? 'a file that is none stops nobody' "$dir/daemon.log"
is "$(grep -c "its heat begins anew: $dir/state/$saved" "$dir/daemon.log")" 1 'it is named once' "$dir/daemon.log"
score --experts cpu --limit 1024
ok $? 'a score' "$dir/err"
LC_ALL=C "$moectl" --socket "$socket" heat tiny >"$dir/map"
grep -q 'steps, halved every 8; ' "$dir/map"
ok $? '--heat-steps is how often heat is halved' "$dir/map"
"$moectl" --socket "$socket" unload tiny 2>"$dir/err"
ok $? 'unloaded' "$dir/err"
# shellcheck disable=SC2317 # wait_for calls it
written() { [ "$(wc -c <"$dir/state/$saved")" -gt 100 ]; }
wait_for written
ok $? 'the file is written over then'
stop_daemon
is $? 0 'it ends'

start_daemon --model "$sample" --name tiny --state-directory "$dir/nowhere"
require $? 'nor does a folder that is not there' "$dir/daemon.log"
score --experts cpu --limit 1024
ok $? 'a score' "$dir/err"
stop_daemon
is $? 0 'it ends'
is "$(grep -c "$dir/nowhere.*StateDirectory=" "$dir/daemon.log")" 2 'it is named at the load and at the save' "$dir/daemon.log"
finish
