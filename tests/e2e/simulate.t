#!/bin/sh
# SPDX-License-Identifier: MIT
#
# simulate - every published result comes out of moectl simulate, whichever way it is asked; charts, tables, refusals.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

vectors=tests/data/cache.json

# same FILE: each result of the vectors is in the document, in the vectors' own words; and there are no others. What the
# vectors do not say of an eviction log is not compared.
cat >"$dir/same.pl" <<'EOF'
use JSON::PP;
my ($got, $want) = map { open(my $in, "<", $_) or die "$_: $!\n"; local $/; decode_json(<$in>) } @ARGV;
my $canonical = JSON::PP->new->canonical;
my ($compared, $logs) = (0, 0);
die "cases differ\n" unless @{$got->{cases}} == @{$want->{cases}};
for my $i (0 .. $#{$want->{cases}}) {
	my ($case, $mine) = ($want->{cases}[$i], $got->{cases}[$i]);
	die "$case->{id}: $mine->{id}\n" unless $mine->{id} eq $case->{id};
	my %by = map { ("$_->{policy} $_->{mode} $_->{capacity}" => $_) } @{$mine->{results}};
	die "$case->{id}: other runs\n" unless keys %by == @{$mine->{results}} && keys %by == @{$case->{results}};
	for my $result (@{$case->{results}}) {
		my $key = "$result->{policy} $result->{mode} $result->{capacity}";
		for my $field (qw(total per_layer), $ENV{FIELDS} ? split(' ', $ENV{FIELDS}) : ()) {
			next unless exists $result->{$field};
			my ($is, $should) = map { $canonical->encode([$_->{$field}]) } $by{$key}, $result;
			die "$case->{id}: $key: $field: $is, expected $should\n" unless $is eq $should;
			$logs += $field =~ /^evictions_/;
		}
		$compared++;
	}
}
print "$compared results, $logs logs\n";
EOF
same() { perl "$dir/same.pl" "$1" "$vectors" >"$dir/same" 2>&1; }

"$moectl" simulate "$vectors" --json --evictions >"$dir/all.json" 2>"$dir/err"
ok $? 'a file of vectors, as it stands' "$dir/err"
FIELDS='params evictions_t_victim_incoming' same "$dir/all.json"
ok $? 'gives its own results' "$dir/same"
is "$(cat "$dir/same")" '180 results, 85 logs' 'all of them'
"$moectl" simulate "$vectors" --json >"$dir/logged.json" 2>"$dir/err"
FIELDS='evictions_t_victim_incoming' same "$dir/logged.json"
is "$(cat "$dir/same")" '180 results, 85 logs' 'the logs that the file has are printed without being asked for'
printf '{"cases":[{"trace":{"layers":1,"experts":4.0,"topk":2,"steps":[[[[0,1.0]]]]}},{"id":7,"trace":{"layers":1,"experts":4,"topk":2,"steps":[[[[2]]]]}}]}' >"$dir/bare"
"$moectl" simulate "$dir/bare" --json --policy lru --capacity 2 >"$dir/bare.json" 2>"$dir/err"
is "$(json "$dir/bare.json" cases.0.id) $(json "$dir/bare.json" cases.1.id) $(json "$dir/bare.json" cases.0.results.0.total.copies)" \
	'cases[0] 7 2' 'cases without names, numbers with a point' "$dir/err"
"$moectl" simulate - --json <"$vectors" >"$dir/input.json" 2>"$dir/err"
same "$dir/input.json"
ok $? 'from standard input too' "$dir/same"

# Numbers of rules that are not their own, in the file's order, and words as the file has them.
numbers=tests/data/cache-params.json
"$moectl" simulate "$numbers" --json >"$dir/numbers.json" 2>"$dir/err"
ok $? 'a file whose runs have numbers of their own' "$dir/err"
perl -MJSON::PP -e '
	my ($got, $want) = map { open(my $in, "<", $_) or die; local $/; decode_json(<$in>)->{cases} } @ARGV;
	my $json = JSON::PP->new->canonical;
	my $n = 0;
	for my $i (0 .. $#$want) {
		my ($are, $should) = map { $_->[$i]{results} } $got, $want;
		die "$want->[$i]{id}: " . @$are . " results\n" if @$are != @$should;
		for my $r (0 .. $#$should) {
			$n++;
			$json->encode($are->[$r]) eq $json->encode($should->[$r]) or
				die "$want->[$i]{id}: result $r: ", $json->encode($are->[$r]), ", expected ", $json->encode($should->[$r]), "\n";
		}
	}
	print "$n\n"' "$dir/numbers.json" "$numbers" >"$dir/out" 2>&1
is "$(cat "$dir/out")" 117 'gives each of its results, twice where it has one twice' "$dir/out"
perl -MJSON::PP -e 'local $/; print encode_json(decode_json(<>)->{cases}[0]{trace})' "$numbers" >"$dir/numbers.trace"
"$moectl" simulate "$dir/numbers.trace" --policy ema,lfu-decay,lru --param kept=0.9,period=3 --capacity 4 --json >"$dir/out" 2>"$dir/err"
is "$(json "$dir/out" results.0.total.hits_unique) $(json "$dir/out" results.0.params.kept) $(json "$dir/out" results.1.total.hits_unique)" \
	"$(json "$numbers" cases.0.results.8.total.hits_unique) 0.9 $(json "$numbers" cases.0.results.1.total.hits_unique)" \
	'numbers asked for by --param' "$dir/err"
"$moectl" simulate "$dir/numbers.trace" --policy ema --param kept=0.9 --capacity 4 >"$dir/out" 2>"$dir/err"
grep -q '^ema, kept 0.9 ' "$dir/out"
ok $? 'a person sees which' "$dir/out"

# No steps: the shape is all there is, in any form.
printf 'MOETRC1\0\1\0\0\0\4\0\0\0\2\0\0\0\1\0\0\0\0\0\0\0' >"$dir/none.moetrc"
: >"$dir/out"
for form in json jsonl moetrc binary; do
	"$moectl" trace convert "$dir/none.moetrc" "$dir/none.$form" --to $form &&
		"$moectl" simulate "$dir/none.$form" --policy lru,belady --capacity 2 --json >"$dir/none.out" &&
		json "$dir/none.out" shape.steps >>"$dir/out"
done 2>"$dir/err"
is "$(tr '\n' ' ' <"$dir/out")" '0 0 0 0 ' 'a trace of no steps' "$dir/err"

# A token that asks for nothing is a token, in any form: half of what a step's other token is worth is not all of it.
printf '%s\n' '{"layers": 1, "experts": 8, "topk": 3}' >"$dir/idle.jsonl"
for step in 0 1; do
	printf '{"step": %s, "layer": 0, "token": 0, "experts": [1, 2, 3], "weights": [0.5, 0.25, 0.125]}\n' $step
	printf '{"step": %s, "layer": 0, "token": 1, "experts": [], "weights": []}\n' $step
done >>"$dir/idle.jsonl"
"$moectl" trace convert "$dir/idle.jsonl" "$dir/idle.binary" --to binary 2>"$dir/err" &&
	"$moectl" trace convert "$dir/idle.binary" "$dir/again.jsonl" --to jsonl 2>>"$dir/err" &&
	cmp "$dir/idle.jsonl" "$dir/again.jsonl" 2>>"$dir/err"
ok $? 'there and back' "$dir/err"
"$moectl" trace convert "$dir/idle.binary" "$dir/idle.json" --to json 2>"$dir/err"
is "$("$moectl" simulate "$dir/idle.json" --policy lru --capacity 3 --json >"$dir/out" && json "$dir/out" results.0.total.hits_unique)" 3 \
	'and in a document' "$dir/err"
# What stands between others: its place is empty, and they are all there.
perl -0777 -pe 's/\x01\0\x02\0\x03\0/\x01\0\xff\xff\x03\0/g' "$dir/idle.binary" >"$dir/gap.binary"
"$moectl" trace convert "$dir/gap.binary" "$dir/gap.jsonl" --to jsonl 2>"$dir/err"
is "$(grep -c '"experts": \[1, 3\], "weights": \[0.5, 0.125\]' "$dir/gap.jsonl")" 2 'an id between others is none' "$dir/err"
"$moectl" simulate "$dir/gap.binary" --policy original --param cache_topk=2 --capacity 3 --json >"$dir/out" 2>"$dir/err"
is "$(json "$dir/out" results.0.per_layer.0.final.#) $(json "$dir/out" results.0.per_layer.0.final.0)" '1 1' \
	'and the next one does not move up to its place' "$dir/err"

# Each case's runs asked for by name, as a case of its own.
perl -MJSON::PP -e '
	my ($file, $to) = @ARGV;
	open(my $in, "<", $file) or die; local $/;
	for my $case (@{decode_json(<$in>)->{cases}}) {
		my %capacities = map { ($_->{capacity} => 1) } @{$case->{results}};
		my %words = (case => $case, trace => $case->{trace});
		for my $what (keys %words) {
			open(my $out, ">", "$to/$case->{id}.$what") or die;
			print $out encode_json($words{$what});
		}
		print "$case->{id} ", join(",", sort keys %capacities), "\n";
	}' "$vectors" "$dir" >"$dir/cases"
while read -r id capacities; do
	{
		"$moectl" simulate "$dir/$id.trace" --json --capacity "$capacities" --policy lru,lfu,lfru \
			--mode pinned,atomic,belady,belady-pinned >"$dir/$id.1"
		"$moectl" simulate "$dir/$id.trace" --json --capacity "$capacities" --policy lfu-decay,ebco-hard >"$dir/$id.2"
		"$moectl" simulate "$dir/$id.case" --json >"$dir/$id.3"
	} 2>>"$dir/err2"
done <"$dir/cases"
# Word splitting is meant: a word for each case.
# shellcheck disable=SC2046
perl -MJSON::PP -e '
	my ($to, @ids) = @ARGV;
	my @cases = map {
		my $id = $_;
		my @parts = map { open(my $in, "<", "$to/$id.$_") or die; local $/; decode_json(<$in>) } 1, 2;
		{id => $id, results => [map { @{$_->{results}} } @parts]};
	} @ids;
	print encode_json({cases => \@cases});
	open(my $out, ">", "$to/alone.json") or die;
	print $out encode_json({cases => [map { open(my $in, "<", "$to/$_.3") or die; local $/; decode_json(<$in>) } @ids]});
' "$dir" $(cut -d' ' -f1 "$dir/cases") >"$dir/asked.json" 2>>"$dir/err2"
same "$dir/asked.json"
ok $? 'traces alone, runs asked for by policy, mode and capacity' "$dir/same"
[ ! -s "$dir/err2" ]
ok $? 'without a word' "$dir/err2"
same "$dir/alone.json"
ok $? 'cases alone' "$dir/same"

# The same trace as lines.
perl -MJSON::PP -e '
	my ($from) = @ARGV;
	open(my $in, "<", $from) or die; local $/;
	my $t = decode_json(<$in>);
	print encode_json({map { ($_ => $t->{$_}) } qw(layers experts topk)}), "\n";
	for my $s (0 .. $#{$t->{steps}}) {
		for my $l (0 .. $t->{layers} - 1) {
			my $tokens = $t->{steps}[$s][$l];
			print encode_json({step => $s, layer => $l, token => $_, experts => $tokens->[$_]}), "\n" for 0 .. $#$tokens;
		}
	}' "$dir/c-dev-003.trace" >"$dir/c-dev-003.jsonl"
for form in trace jsonl; do
	"$moectl" simulate "$dir/c-dev-003.$form" --json --capacity 4,8 >"$dir/out" 2>"$dir/err" &&
		perl -MJSON::PP -e 'local $/; print JSON::PP->new->canonical->encode(decode_json(<>)->{results})' "$dir/out" >"$dir/$form.out"
done
cmp -s "$dir/trace.out" "$dir/jsonl.out" && [ -s "$dir/jsonl.out" ]
ok $? 'JSONL says what the document says' "$dir/err"

name=$(printf 'x\377\033.json')
cp "$dir/c-dev-003.trace" "$dir/$name"
"$moectl" simulate "$dir/$name" --policy lru --capacity 4 --json >"$dir/out" 2>"$dir/err"
is "$(json "$dir/out" id)" 'x??.json' 'a file name that is no UTF-8 and would move the cursor'

"$moectl" simulate "$dir/c-dev-003.trace" --capacity 4,8 --policy lru,belady --mode pinned,atomic >"$dir/table" 2>"$dir/err"
grep -q '^lru  *0.5154  *0.8188$' "$dir/table" && grep -q '^lru, atomic ' "$dir/table" && grep -q '^belady ' "$dir/table"
ok $? 'a table for a person' "$dir/table"

# static, empty and calibrated: with all of the trace known, the most used experts are there from the first step on.
for calibrate in '' "--calibrate $dir/c-dev-004.trace"; do
	# Word splitting is meant.
	# shellcheck disable=SC2086
	"$moectl" simulate "$dir/c-dev-004.trace" --policy static --capacity 8 --json $calibrate 2>"$dir/err" >"$dir/static.json"
	json "$dir/static.json" results.0.total.hits_unique
	json "$dir/static.json" results.0.total.insertions
done >"$dir/out"
# shellcheck disable=SC2046
set -- $(cat "$dir/out")
[ "$2" -gt 0 ] && [ "$4" = 0 ] && [ "$3" -gt "$1" ]
ok $? 'static: filled by the first to come, or from a calibration trace' "$dir/out"

"$moectl" simulate "$dir/c-dev-003.trace" --svg "$dir/chart.svg" >"$dir/out" 2>"$dir/err"
ok $? 'a chart' "$dir/err"
[ "$(grep -c '<polyline' "$dir/chart.svg")" = 13 ] && perl -0ne '
	my @open;
	while (m{<(/?)([a-z]+)[^>]*?(/?)>}g) { $1 ? (pop(@open) eq $2 or exit 1) : $3 || push @open, $2 }
	exit @open != 0' "$dir/chart.svg"
ok $? 'has a line for each policy, and all its tags are closed' "$dir/chart.svg"

# Three layers, no slots: all is missing, so a step waits for as many copies as it has distinct experts. 1 MB at 10 GB/s is
# 100 us, read by the device 10 us.
"$moectl" simulate "$dir/c-dev-003.trace" --policy lru --capacity 0 --json \
	--cost expert=1M,link=10,device=100,cpu=20,layer=5 >"$dir/cost.json" 2>"$dir/err"
ok $? 'rates are given' "$dir/err"
is "$(awk -v copies="$(json "$dir/cost.json" results.0.total.copies)" -v wait="$(json "$dir/cost.json" results.0.cost.wait_ns)" \
	-v compute="$(json "$dir/cost.json" results.0.cost.compute_ns)" 'BEGIN {
		steps = 40
		printf "%.3f %.3f", wait * steps / copies, (compute * steps - copies * 10000) / steps
	}')" '100000.000 14625.000' 'a step waits for its copies, and its layers that have tokens take their time'
"$moectl" simulate "$dir/c-dev-003.trace" --policy lru --cost expert=1M,link=10,device=100,cpu=20 >"$dir/out" 2>"$dir/err"
grep -q 'not measured' "$dir/out" && grep -q '^lru  *2  .* split$\|^lru  *2  .* both$' "$dir/out"
ok $? 'a table of designs says what it is' "$dir/out"
# A chart of times for each rule, with the numbers of --json: a point stands 360 high where the axis ends.
set -- "$dir/c-dev-003.trace" --policy lru,ema --capacity 2,4,8 --cost expert=1M,link=10,device=100,cpu=20,layer=5
"$moectl" simulate "$@" --svg "$dir/steps.svg" 2>"$dir/err" && "$moectl" simulate "$@" --json >"$dir/steps.json" 2>>"$dir/err"
ok $? 'a chart of steps' "$dir/err"
perl -MJSON::PP -e '
	local $/; open my $f, "<", $ARGV[0] or die; my $svg = <$f>; open $f, "<", $ARGV[1] or die;
	my $runs = decode_json(<$f>)->{results};
	my @charts = split /<g /, $svg; shift @charts;
	print "charts ", scalar(@charts), " ";
	my @designs = qw(serial overlapped split both chunked-2 chunked-4 chunked-8 ideal);
	my ($wrong, $n) = (0, 0);
	for my $rule (0, 1) {
		my $chart = $charts[1 + $rule];
		my ($top) = sort { $b <=> $a } $chart =~ m{text-anchor="end">([0-9.]+)<}g;
		my $unit = $chart =~ /a step, ms/ ? 1e6 : 1e3;
		my @lines = $chart =~ /points="([^"]*)"/g;
		my @mine = grep { $_->{policy} eq (qw(lru ema))[$rule] } @$runs;
		for my $d (0 .. $#designs) {
			my @y = map { (split /,/)[1] } split " ", $lines[$d];
			for my $i (0 .. $#mine) {
				my $c = $mine[$i]{cost};
				my $ns = $designs[$d] eq "ideal" ? $c->{ideal_ns} : $c->{designs_ns}{$designs[$d]};
				$wrong++ if abs($y[$i] - (40 + 360 * (1 - $ns / $unit / $top))) > 0.06;
				$n++;
			}
		}
	}
	print "points $n wrong $wrong"' "$dir/steps.svg" "$dir/steps.json" >"$dir/out" 2>"$dir/err"
is "$(cat "$dir/out")" 'charts 3 points 48 wrong 0' 'shares, then a chart of each rule with its designs, as --json says' "$dir/err"

# refuses PATTERN STATUS WORD...
refuses() {
	pattern=$1
	status=$2
	shift 2
	"$moectl" simulate "$@" >"$dir/out" 2>"$dir/err"
	[ $? = "$status" ] && grep -q -e "$pattern" "$dir/err" && [ ! -s "$dir/out" ]
	ok $? "refused: $*" "$dir/err"
}
printf '{"layers":1,"experts":4,"topk":1,"steps":[[[[4]]]]}' >"$dir/bad.json"
refuses 'bad.json: steps.0..0..0.: id 0: 4 found, 0 to 3 expected' 1 "$dir/bad.json"
refuses 'No such file' 1 "$dir/none"
refuses "'mru' found, one of lru, lfu" 2 "$vectors" --policy mru
refuses "'loose' found, pinned" 2 "$vectors" --mode loose
refuses "'4097' found, 0 to 4096" 2 "$vectors" --capacity 4097
refuses "'' found" 2 "$vectors" --capacity 2,
"$moectl" simulate "$dir/c-dev-003.trace" --capacity 4 --policy ema,lru --mode pinned,atomic >"$dir/table" 2>"$dir/err"
is "$?:$(grep -c atomic "$dir/table")" 0:1 'a policy without an atomic form is left out of that mode, the others are run' "$dir/err"
grep -q 'ema has no atomic form' "$dir/err"
ok $? 'and it says so' "$dir/err"
refuses 'one of lru, lfu, lfu-decay, lfru, ebco-hard expected' 1 "$vectors" --mode atomic --policy sieve
refuses 'draws one trace' 1 "$vectors" --svg "$dir/x.svg"
refuses 'is for --json' 2 "$vectors" --evictions
refuses 'calibrate:.*7 traces' 1 "$dir/c-dev-003.trace" --policy static --calibrate "$vectors"
refuses 'no cpu found' 2 "$vectors" --cost expert=1M,link=10,device=100
refuses "'links=1' found" 2 "$vectors" --cost links=1
refuses "'link=0' found, a number above 0" 2 "$vectors" --cost link=0
refuses 'link=2. found, and link before' 2 "$vectors" --cost expert=1M,link=10,device=100,cpu=20,link=2
refuses 'kept: 2 found, a number from 0 to 1' 2 "$dir/numbers.trace" --param kept=2
refuses 'kept: no policy that is run has it' 1 "$dir/numbers.trace" --policy lru --param kept=0.9
refuses "'kept=x' found, NAME=NUMBER" 2 "$dir/numbers.trace" --param kept=x
refuses 'kept found twice' 2 "$dir/numbers.trace" --param kept=0.5,kept=0.6
refuses 'cannot be read\|cannot be opened' 1 "$dir"
finish
