#!/bin/sh
# SPDX-License-Identifier: MIT
#
# json - what moectl --json prints is as docs/json/*.schema.json say: no key missing, none that they do not know.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

# valid FILE SCHEMA: draft 7, as far as these schemas use it; what is wrong goes to $dir/wrong.
valid() {
	perl -MJSON::PP -e '
		my ($document, $schema) = map { open(my $in, "<", $_) or die "$_: $!\n"; local $/; decode_json(<$in>) } @ARGV;
		sub types {
			my ($v) = @_;
			return "null" unless defined $v;
			return ref $v eq "HASH" ? "object" : ref $v eq "ARRAY" ? "array" : "boolean" if ref $v;
			return "string" unless encode_json([$v]) !~ /^\["/;
			return ("number", $v =~ /^-?\d+$/ ? "integer" : ());
		}
		sub check {
			my ($v, $s, $at) = @_;
			my @may = ref $s->{type} ? @{$s->{type}} : $s->{type};
			my %is = map { $_ => 1 } types($v);
			return print "$at: ", join("/", sort keys %is), ", expected @may\n" unless grep { $is{$_} } @may;
			print "$at: \"$v\" is none of @{$s->{enum}}\n" if $s->{enum} && !grep { $_ eq $v } @{$s->{enum}};
			if (ref $v eq "HASH") {
				print "$at: no $_\n" for grep { !exists $v->{$_} } @{$s->{required}};
				for (sort keys %$v) {
					my $of = $s->{properties}{$_};
					$of ? check($v->{$_}, $of, "$at.$_") : print "$at.$_: not in the schema\n";
				}
			} elsif (ref $v eq "ARRAY") {
				check($v->[$_], $s->{items}, "$at\[$_]") for 0 .. $#$v;
			}
		}
		check($document, $schema, "document");
	' "$1" "docs/json/$2.schema.json" >"$dir/wrong" 2>&1
	[ ! -s "$dir/wrong" ]
}

# all WHEN: each document that there is.
all() {
	for verb in status stats models sessions doctor; do
		"$moectl" --socket "$socket" $verb --json >"$dir/$verb.json" 2>"$dir/err"
		valid "$dir/$verb.json" $verb
		ok $? "$1: $verb" "$dir/wrong"
	done
}

printf '[Models]\nModel=tiny:%s\nMemoryMax=2G\n[Pool]\nTurbo=yes\n' "$root/$sample" >"$dir/expertd.conf"
for conf in /dev/null "$dir/expertd.conf"; do
	"$moectl" config --config "$conf" --json >"$dir/config.json" 2>"$dir/err"
	valid "$dir/config.json" config
	ok $? "config of $conf" "$dir/wrong"
done
is "$(json "$dir/config.json" 'warnings.#')" 1 'with a warning in it'

printf '{"layers":1,"experts":4,"topk":1,"steps":[[[[3]]],[[[0],[3]]]]}' >"$dir/trace.json"
for options in '' --evictions '--cost expert=1M,link=10,device=100,cpu=20' "--policy ema,static --calibrate $dir/trace.json"; do
	# Word splitting is meant.
	# shellcheck disable=SC2086
	"$moectl" simulate "$dir/trace.json" $options --json >"$dir/simulate.json" 2>"$dir/err"
	[ -s "$dir/simulate.json" ] && valid "$dir/simulate.json" simulate
	ok $? "simulate $options" "$dir/wrong"
done
"$moectl" simulate tests/data/cache.json --evictions --json >"$dir/simulate.json" 2>"$dir/err"
valid "$dir/simulate.json" simulate
ok $? 'simulate, of several cases' "$dir/wrong"
"$moectl" simulate tests/data/cache-params.json --json >"$dir/simulate.json" 2>"$dir/err"
valid "$dir/simulate.json" simulate
ok $? 'simulate, of runs with numbers of their own' "$dir/wrong"
for what in 'eplb --case tests/data/eplb.json' 'dynamic --case tests/data/eplb-ascend.json --transfers'; do
	# Word splitting is meant.
	# shellcheck disable=SC2086
	"$moectl" plan --policy $what --json >"$dir/plan.json" 2>"$dir/err"
	valid "$dir/plan.json" plan
	ok $? "plan --policy $what" "$dir/wrong"
done
"$moectl" plan --case tests/data/expert-map.json --json >"$dir/plan.json" 2>"$dir/err"
valid "$dir/plan.json" plan
ok $? 'plan of maps' "$dir/wrong"
printf '{}' >"$dir/eplb-config.json"
"$moectl" plan --config "$dir/eplb-config.json" --json >"$dir/plan.json" 2>"$dir/err"
valid "$dir/plan.json" plan
ok $? 'plan of a configuration' "$dir/wrong"

"$moectl" trace convert "$dir/trace.json" "$dir/trace.moetrace" --to binary 2>"$dir/err"
"$moectl" trace show "$dir/trace.moetrace" --json >"$dir/trace.out" 2>>"$dir/err"
valid "$dir/trace.out" trace
ok $? 'trace show' "$dir/wrong"
"$moectl" trace show "$dir/trace.json" --json >"$dir/trace.out" 2>>"$dir/err"
valid "$dir/trace.out" trace
ok $? 'trace show of what is no recording' "$dir/wrong"
"$moectl" trace show tests/data/cache.json --json >"$dir/trace.out" 2>>"$dir/err"
valid "$dir/trace.out" trace && [ "$(json "$dir/trace.out" 'cases.#')" -gt 1 ]
ok $? 'and of a file of several' "$dir/wrong"

# A schema for each verb that prints JSON; load prints what models does.
"$moectl" --help | sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p' | while read -r verb; do
	"$moectl" "$verb" --help | grep -q -e '^  --json' || continue
	echo "$verb" >>"$dir/verbs"
	[ -f "docs/json/$verb.schema.json" ] || [ "$verb" = load ] || echo "$verb"
done >"$dir/out"
[ ! -s "$dir/out" ]
ok $? 'each verb with --json has a schema' "$dir/out"
within "$(wc -l <"$dir/verbs")" 8 100 'verbs that were looked at'

start_daemon --threads 1
require $? 'a daemon without a model' "$dir/daemon.log"
all 'without a model'
stop_daemon
is $? 0 'it ends'
start_daemon --model "$sample" --pool-max 10M
require $? 'a daemon with a tiered model' "$dir/daemon.log"
all 'tiered'
stop_daemon
is $? 0 'it ends'
plain=$expertd
here=$(CDPATH='' cd -- "$build" && pwd)
printf '#!/bin/sh\nexec env PRETEND_NODES=2 LD_PRELOAD="%s" "%s" "$@"\n' "$here/tests/pretend-nodes.so" "$here/daemon/moe-expertd" \
	>"$dir/expertd"
chmod +x "$dir/expertd"
expertd=$dir/expertd
start_daemon --model "$sample" --replica-max 16M
require $? 'a daemon with copies of hot experts' "$dir/daemon.log"
all 'with copies'
stop_daemon
is $? 0 'it ends'
expertd=$plain
start_daemon --model "$sample"
require $? 'a daemon with a model' "$dir/daemon.log"
long_text
"$worker" score --model "$sample" --experts cache --slots 4 --ghosts 2 --predict 4 --daemon "$socket" --text "$dir/long.txt" >"$dir/out" 2>"$dir/err" &
started="$started $!"
wait_for have_sessions 1
require $? 'a session'
all 'with a session'
"$moectl" --socket "$socket" load "$sample" --name again --json >"$dir/load.json" 2>"$dir/err"
valid "$dir/load.json" models
ok $? 'load prints what models does' "$dir/wrong"
"$moectl" --socket "$socket" heat tinymoe --json >"$dir/heat.json"
valid "$dir/heat.json" heat
ok $? 'heat' "$dir/wrong"
"$moectl" --socket "$socket" trace record --json --seconds 0.1 --output "$dir/empty.moetrace" >"$dir/trace.out" 2>>"$dir/err"
valid "$dir/trace.out" trace
ok $? 'trace record' "$dir/wrong"

# The check finds what it is there for.
sed 's/"pid": [0-9]*/"pid": "x"/' "$dir/status.json" >"$dir/bad.json"
valid "$dir/bad.json" status
is $? 1 'a wrong type is found'
sed 's/"uptime_ns"/"new_key"/' "$dir/status.json" >"$dir/bad.json"
valid "$dir/bad.json" status
is "$? $(wc -l <"$dir/wrong")" '1 2' 'a missing key and an unknown one are found' "$dir/wrong"
finish
