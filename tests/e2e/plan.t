#!/bin/sh
# SPDX-License-Identifier: MIT
#
# plan - moectl plan without a daemon: published vectors in their own fields, maps there and back, transfers, errors.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

# plan OPTION...: its output is in $dir/out, its errors in $dir/err.
plan() {
	"$moectl" --socket "$dir/none" plan "$@" >"$dir/out" 2>"$dir/err"
}

# same FILE KEY FIELDS: what was printed has these fields of each case of FILE, of the object KEY in it unless empty.
same() {
	perl -MJSON::PP -e '
		my ($file, $out, $key, @fields) = @ARGV;
		my ($want, $found) = map { open(my $in, "<", $_) or die "$_: $!\n"; local $/; decode_json(<$in>)->{cases} } $file, $out;
		my $json = JSON::PP->new->canonical->allow_nonref;
		# Numbers as numbers: 1.0 is 1.
		sub plain {
			my ($v) = @_;
			return [map { plain($_) } @$v] if ref $v eq "ARRAY";
			return {map { $_ => plain($v->{$_}) } keys %$v} if ref $v eq "HASH";
			return defined $v && $v =~ /^-?[\d.]+$/ ? $v + 0 : $v;
		}
		print "cases: ", scalar @$found, ", expected ", scalar @$want, "\n" if @$found != @$want;
		for my $i (0 .. $#$want) {
			my $of = $key eq "" ? $want->[$i] : $want->[$i]{expected}{$key};
			print "case $i: id $found->[$i]{id}\n" if $found->[$i]{id} ne $want->[$i]{id};
			for my $f (grep { exists $of->{$_} } @fields) {
				print "$want->[$i]{id}: $f differs\n"
					if $json->encode(plain($of->{$f})) ne $json->encode(plain($found->[$i]{$f}));
			}
		}
	' "$@" >"$dir/wrong" 2>&1
	[ ! -s "$dir/wrong" ]
}

# -- published vectors ------------------------------------------------------------------------------------------------

plan --policy eplb --case tests/data/eplb.json --json
ok $? 'eplb --case' "$dir/err"
same tests/data/eplb.json "$dir/out" '' policy phy2log log2phy logcnt balance
ok $? 'the published fields of each case' "$dir/wrong"
for pair in dynamic:dynamic_ep dynamic_ep:dynamic_ep swift:swift swift-upstream:swift; do
	plan --policy "${pair%:*}" --case tests/data/eplb-ascend.json --json
	ok $? "${pair%:*} --case" "$dir/err"
	same tests/data/eplb-ascend.json "$dir/out" "${pair#*:}" change placement mean_max_imbalance moved_in
	ok $? 'the published fields of each case' "$dir/wrong"
done
plan --policy swift-exact --case tests/data/eplb-ascend.json --json
ok $? 'swift-exact --case' "$dir/err"
same tests/data/eplb-ascend.json "$dir/out" swift placement
is $? 1 'right averages give other placements'
plan --case tests/data/expert-map.json --json
ok $? 'maps in cases' "$dir/err"
same tests/data/expert-map.json "$dir/out" '' valid layers layers_tp2
ok $? 'the published fields of each case' "$dir/wrong"
perl -MJSON::PP -e 'local $/; print encode_json(decode_json(<>)->{cases}[0])' tests/data/eplb.json >"$dir/one.json"
plan --policy eplb --case "$dir/one.json" --json
is "$(json "$dir/out" id) $(json "$dir/out" phy2log.0.0) $(json "$dir/out" cases)" 'readme 5 no cases' 'one case: one object'
# As other languages write whole numbers, without what can be known, and with a number for a name.
perl -MJSON::PP -e 'local $/; my $c = decode_json(<>)->{cases}[0]; delete $c->{$_} for qw(layers experts num_groups num_nodes);
	$c->{id} = 7; my $text = encode_json($c); $text =~ s/"num_(replicas|gpus)":(\d+)/"num_$1":$2.0/g; print $text' \
	tests/data/eplb.json >"$dir/bare.json"
plan --policy eplb --case "$dir/bare.json" --json
is "$? $(json "$dir/out" id) $(json "$dir/out" phy2log.0.#) $(json "$dir/out" policy)" '0 7 16 hierarchical' 'a case that says less' \
	"$dir/err"
sed 's/16\.0/16.5/' "$dir/bare.json" >"$dir/half.json"
plan --policy eplb --case "$dir/half.json" --json
is "$? $(grep -c 'num_replicas: the number 16.50 found' "$dir/err")" '1 1' 'but no halves' "$dir/err"
plan --policy eplb --case tests/data/eplb.json
grep -q '^readme: hierarchical$' "$dir/out" && grep -q '^largest load over mean: 1.2252 on average, 1.2422 at worst$' "$dir/out"
ok $? 'for a person' "$dir/out"

# -- loads, maps, transfers -------------------------------------------------------------------------------------------

perl -e 'print "[", join(",", map { my $l = $_; "[" . join(",", map { ($_ * 7919 + $l * 104729) % 997 } 1 .. 24) . "]" } 0 .. 2), "]\n"' >"$dir/loads.json"
plan --policy eplb --weights "$dir/loads.json" --replicas 32 --groups 4 --nodes 2 --gpus 8 --json
is "$(json "$dir/out" policy) $(json "$dir/out" phy2log.#) $(json "$dir/out" phy2log.0.#)" 'hierarchical 3 32' 'eplb of loads' "$dir/err"
plan --policy eplb-global --weights "$dir/loads.json" --replicas 32 --groups 4 --nodes 2 --gpus 8 --json
is "$(json "$dir/out" policy)" global 'eplb-global' "$dir/err"
for policy in swift dynamic flashlb random; do
	plan --policy $policy --weights "$dir/loads.json" --replicas 32 --gpus 8 --map "$dir/$policy.json"
	ok $? "$policy of loads, with a map" "$dir/err"
	plan --from "$dir/$policy.json"
	is "$(cat "$dir/out")" '3 layers on 8 devices of 4 slots, 24 experts, 8 slots for more copies' 'its map is sound' "$dir/err"
done
plan --from "$dir/swift.json" --map - >/dev/null
sed '/^[0-9]/d' "$dir/out" >"$dir/again.json"
cmp -s "$dir/swift.json" "$dir/again.json"
ok $? 'a map that is read and written is the same'
for policy in swift eplb; do
	plan --policy $policy --weights "$dir/loads.json" --from "$dir/dynamic.json" --transfers --json
	ok $? "$policy --from --transfers" "$dir/err"
	key=$([ $policy = eplb ] && echo phy2log || echo placement)
	perl -MJSON::PP -MList::Util=any -e '
		my ($map, $plan, $key) = @ARGV;
		my ($old, $new) = map { open(my $in, "<", $_) or die; local $/; decode_json(<$in>) } $map, $plan;
		my @now = map { [map { @{$_->{device_expert}} } @{$_->{device_list}}] } @{$old->{layer_list}};
		my @was = map { [@$_] } @now;
		for my $t (sort { ($a->{after_receiving} // 0) <=> ($b->{after_receiving} // 0) } @{$new->{transfers}}) {
			my $from = $t->{after_receiving} ? \@now : \@was;
			my $e = $from->[$t->{layer}][$t->{from_rank} * 4 + $t->{from_slot}];
			die "expert $t->{expert} is not there\n" if $e != $t->{expert};
			$now[$t->{layer}][$t->{to_rank} * 4 + $t->{to_slot}] = $e;
		}
		for my $l (0 .. $#now) {
			my @want = map { ref $_ ? @$_ : $_ } @{$new->{$key}[$l]};
			die "layer $l differs\n" if "@want" ne "@{$now[$l]}";
		}
	' "$dir/dynamic.json" "$dir/out" "$key" 2>"$dir/wrong"
	ok $? 'made, they give the plan' "$dir/wrong"
done
printf '{"name":"m","layers":[{"layer":0,"pairs":[5,1,0,2],"copies":[0,1,0,0]}]}' >"$dir/heat.json"
plan --policy eplb --weights "$dir/heat.json" --replicas 6 --gpus 2 --json
is "$(json "$dir/out" logcnt.0.0)" 3 'what moectl heat prints is taken for loads' "$dir/err"
printf '{"models":[{"layers":[{"pairs":[5,1,0,2],"copies":[0,1,0,0],"heat":[0,0,9,0]}]}]}' >"$dir/lasting.json"
plan --policy eplb --weights "$dir/lasting.json" --replicas 6 --gpus 2 --json
is "$(json "$dir/out" logcnt.0.2)" 3 'of it the heat that lasts, once there is any' "$dir/err"
printf '{"models":[{},{}]}' >"$dir/two.json"
plan --policy eplb --weights "$dir/two.json" --gpus 2 --json
is "$? $(grep -c 'models: an array of 2 found, one model expected' "$dir/err")" '1 1' 'of one model' "$dir/err"

plan --policy hot --weights "$dir/heat.json" --nodes 2 --replicas 4 --json
is "$(json "$dir/out" policy) $(json "$dir/out" 'copies.0.#') $(json "$dir/out" 'copies.0.1.#') $(json "$dir/out" covered.0)" \
	'hot 2 2 1' 'whole copies of hot experts on two nodes' "$dir/err"
plan --policy hot --weights "$dir/loads.json" --nodes 2 --replicas 4
is "$(grep -c '%' "$dir/out")" 3 'for a person, a line for each layer' "$dir/out"

# -- vLLM Ascend's configuration -------------------------------------------------------------------------------------

unset DYNAMIC_EPLB EXPERT_MAP_RECORD
printf '{"additional_config": {"eplb_config": {"num_redundant_experts": 8, "eplb_policy_type": 1}}}' >"$dir/config.json"
plan --config "$dir/config.json" --json
is "$(json "$dir/out" eplb_config.expert_heat_collection_interval)" 600 'a configuration is shown with its defaults' "$dir/err"
plan --config "$dir/config.json"
grep -q '^num_redundant_experts  *8$' "$dir/out"
ok $? 'and for people' "$dir/out"
plan --config "$dir/config.json" --weights "$dir/loads.json" --gpus 8 --json
cp "$dir/out" "$dir/by-config.json"
plan --policy dynamic --weights "$dir/loads.json" --gpus 8 --replicas 32 --json
cmp -s "$dir/out" "$dir/by-config.json"
ok $? 'beside loads it says policy and copies' "$dir/err"
printf '{"expert_map_record_path": "%s/records/deep/map.json", "num_redundant_experts": 8}' "$dir" >"$dir/record.json"
EXPERT_MAP_RECORD=true plan --config "$dir/record.json" --weights "$dir/loads.json" --gpus 8
is $? 0 'a map is recorded where the configuration says' "$dir/err"
plan --policy swift --weights "$dir/loads.json" --gpus 8 --replicas 32 --map "$dir/recorded.json" &&
	cmp "$dir/recorded.json" "$dir/records/deep/map.json" >"$dir/err" 2>&1
ok $? 'in folders that were not there: the new map' "$dir/err"
rm -r "$dir/records" && EXPERT_MAP_RECORD=true plan --config "$dir/record.json" --weights "$dir/loads.json" --gpus 8 --map "$dir/recorded.json"
[ ! -e "$dir/records" ]
ok $? 'but not where --map names another' "$dir/err"
: >"$dir/records"
EXPERT_MAP_RECORD=true plan --config "$dir/record.json" --weights "$dir/loads.json" --gpus 8
is "$?/$(grep -c "expert_map_record_path: folder $dir/records" "$dir/err")" 1/1 'a folder that cannot be made is named' "$dir/err"
rm "$dir/records"
printf '{"expert_map_path": "%s"}' "$dir/swift.json" >"$dir/map-config.json"
plan --config "$dir/map-config.json" --weights "$dir/loads.json" --json
cp "$dir/out" "$dir/by-config.json"
plan --policy swift --from "$dir/swift.json" --weights "$dir/loads.json" --json
cmp -s "$dir/out" "$dir/by-config.json"
ok $? 'and the map' "$dir/err"

# -- what is refused --------------------------------------------------------------------------------------------------

# refused STATUS WORDS OPTION...
refused() {
	status=$1 words=$2
	shift 2
	plan "$@"
	is "$?" "$status" "refused: $words" "$dir/err"
	grep -qF -- "$words" "$dir/err"
	ok $? 'it says so' "$dir/err"
}
# The same options go with every policy, whether it looks at them or not.
for policy in dynamic swift swift-exact flashlb random; do
	plan --policy "$policy" --weights "$dir/loads.json" --gpus 8 --replicas 32 --json && cp "$dir/out" "$dir/without"
	plan --policy "$policy" --weights "$dir/loads.json" --gpus 8 --replicas 32 --groups 4 --nodes 2 --json
	is "$?" 0 "$policy: --groups and --nodes are taken" "$dir/err"
	cmp "$dir/out" "$dir/without" >"$dir/diff" 2>&1 && grep -qF -- "of eplb, which packs groups on nodes: $policy plans without" "$dir/err"
	ok $? 'make no difference, and it says so' "$dir/diff"
done
refused 2 "--policy: 'best' found" --policy best --weights "$dir/loads.json" --gpus 8
refused 2 '--weights, --from or --case is missing' --policy eplb
refused 2 '--policy hot needs --weights, --nodes and --replicas' --policy hot --weights "$dir/loads.json" --nodes 2
refused 2 '--policy hot goes with' --policy hot --weights "$dir/loads.json" --nodes 2 --replicas 4 --gpus 2
refused 1 '--replicas: 5 found, a multiple of the 2 nodes expected' --policy hot --weights "$dir/loads.json" --nodes 2 --replicas 5
refused 1 '24 experts and 1 nodes of 25 slots found' --policy hot --weights "$dir/loads.json" --nodes 1 --replicas 25
refused 2 '--gpus is missing' --policy eplb --weights "$dir/loads.json"
refused 2 '--transfers needs --from' --policy eplb --weights "$dir/loads.json" --gpus 8 --transfers
refused 2 '--case has loads' --policy eplb --case tests/data/eplb.json --gpus 8
refused 2 '1 to 65536: 8x' --policy eplb --weights "$dir/loads.json" --gpus 8x
refused 1 "--replicas (not given): 24 found, a multiple of the 7 gpus expected" --policy eplb --weights "$dir/loads.json" --gpus 7
refused 1 '--replicas: 8 found, 24 (one for each expert)' --policy eplb --weights "$dir/loads.json" --gpus 8 --replicas 8
refused 1 '--gpus: 7 found, a multiple of the 2 nodes' --policy eplb --weights "$dir/loads.json" --gpus 7 --nodes 2 --groups 2 --replicas 28
refused 1 "$dir/loads.json: experts: 24 found, a multiple of the 5 groups expected" --policy eplb --weights "$dir/loads.json" --gpus 8 --groups 5
printf '{"cases":[{"id":"odd","num_gpus":2,"num_replicas":3,"weight":[[1,2]]}]}' >"$dir/odd.json"
refused 1 "case odd: $dir/odd.json: cases[0].num_replicas: 3 found, a multiple of the 2 gpus expected" --policy eplb --case "$dir/odd.json"
printf '{"num_gpus":9223372036854775808,"weight":[[1,2]]}' >"$dir/big.json"
refused 1 'big.json: num_gpus: the number 9.223e+18 found, an integer from 1 to 65536 expected' --policy eplb --case "$dir/big.json"
printf '{"placement":[[[0],[-1]]],"workload":[[[1],[2]]]}' >"$dir/below.json"
refused 1 'below.json: placement[0][1][0]: -1 found, the id of an expert, 0 to 16383, expected' --policy swift --case "$dir/below.json"
printf '{"cases":[]}' >"$dir/nothing.json"
plan --policy eplb --case "$dir/nothing.json"
is "$? $(cat "$dir/out")" '0 no cases' 'a file without a case says so' "$dir/err"
plan --policy eplb --case "$dir/nothing.json" --json
is "$? $(json "$dir/out" 'cases.#')" '0 0' 'and is an empty array' "$dir/err"
refused 1 'case a-dev-000: tests/data/eplb-ascend.json: cases[0].weight: nothing found' --policy eplb --case tests/data/eplb-ascend.json
refused 1 'no-such-file' --policy eplb --weights "$dir/no-such-file" --gpus 8
printf '[[1,2],[3,"x"]]' >"$dir/bad.json"
refused 1 'bad.json: weight[1][1]: the string "x" found, a number from 0 to 1e30 expected' --policy eplb --weights "$dir/bad.json" --gpus 1
printf '{"weight":[[1,2' >"$dir/bad.json"
refused 1 'bad.json: line 1, column ' --policy eplb --weights "$dir/bad.json" --gpus 1
sed 's/"device_id": 1/"device_id": 2/' "$dir/swift.json" >"$dir/bad.json"
refused 1 'bad.json: layer_list[0].device_list[1].device_id: 2 found, 1 expected' --from "$dir/bad.json"
printf '[[100,1]]' >"$dir/hot.json"
refused 1 'is on rank 0 twice' --policy eplb --weights "$dir/hot.json" --replicas 4 --gpus 1 --map "$dir/twice.json"
[ ! -e "$dir/twice.json" ]
ok $? 'and nothing is written'
printf '{"eplb_policy_type": 4}' >"$dir/bad.json"
refused 1 'bad.json: eplb_config.eplb_policy_type: 4 found, an integer from 0 to 3 expected' --config "$dir/bad.json"
printf '{"dynamic_eplb": true}' >"$dir/bad.json"
refused 1 'DYNAMIC_EPLB=true or 1' --config "$dir/bad.json"
printf '{"expert_map_path": "%s/none.json"}' "$dir" >"$dir/bad.json"
refused 1 'none.json' --config "$dir/bad.json"
refused 1 "1 rank of expert parallelism" --config "$dir/map-config.json" --weights "$dir/loads.json" --gpus 1
refused 2 '--case has no use for --config' --config "$dir/config.json" --case tests/data/expert-map.json
finish
