#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# dashboard - every query of the Grafana dashboard asks for metrics that exist, with labels that they have: counters by a
# rate, gauges without one. Its panels have numbers of their own and do not cover each other.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/../style";
use JSON::PP;
use Style;

my $file = 'share/grafana/moe-expertd.json';
my $table = join '', lines('lib/metrics/families.c');
my $dashboard = decode_json(join '', lines($file));

# Labels that the way to a metric's objects gives (lib/metrics/families.c), and what Prometheus adds.
my %ways = map { my ($scope, $way) = @$_; ($scope => [$way =~ /\{"(?:[a-z._]+)", \{((?:"\w+"(?:, )?)+)\}/g]) }
	map { /^(\w+)\] = (.*)$/s ? [$1, $2] : () } split /\n\t\[METRICS_/, $table =~ s/\n\};.*//sr;
my %metrics;
while ($table =~ /\{"(moe_expertd_\w+)", (COUNTER|GAUGE), METRICS_(\w+), (?:"[^"]*"|NULL), ("([^"]*)"|NULL)/g) {
	my ($name, $type, $scope, $split) = ($1, $2, $3, $5 // '');
	my @labels = map { /"(\w+)"/g } @{$ways{$scope} // []};
	push @labels, map { s/.*\.//r } split /,/, $split;
	$metrics{$name} = {type => $type, labels => {map { $_ => 1 } @labels, qw(instance job)}};
}
ok(keys %metrics > 80, 'the table has metrics (' . keys(%metrics) . ')');
ok($metrics{moe_expertd_mode_steps_total}{labels}{mode} && $metrics{moe_expertd_mode_steps_total}{labels}{session} &&
	$metrics{moe_expertd_layer_pairs_total}{labels}{path} && !$metrics{moe_expertd_sessions}{labels}{model},
	'and their labels');

# What is wrong with a query.
sub wrong_in {
	my ($query) = @_;
	my @wrong;

	my @names = $query =~ /\b(moe_expertd_\w+)/g;
	push @wrong, 'asks for no metric' unless @names;
	push @wrong, map { "$_ is not exported" } grep { !$metrics{$_} } @names;
	while ($query =~ /\b(moe_expertd_\w+)(?:\{([^}]*)\})?(\[)?/g) {
		my ($name, $in, $range) = ($1, $2 // '', $3);
		my $metric = $metrics{$name} or next;
		push @wrong, map { "$name has no label $_" } grep { !$metric->{labels}{$_} } $in =~ /(\w+)\s*[!=]~?"/g;
		push @wrong, "$name is a counter, without a rate" if $metric->{type} eq 'COUNTER' && !$range;
		push @wrong, "$name is no counter, but has a range" if $metric->{type} ne 'COUNTER' && $range;
	}
	for my $by (map { split /,\s*/ } $query =~ /\bby \(([^)]*)\)/g) {
		push @wrong, "grouped by $by, which none of its metrics has"
			if @names && !grep { $metrics{$_} && $metrics{$_}{labels}{$by} } @names;
	}
	my $open = () = $query =~ /[({\[]/g;
	my $close = () = $query =~ /[)}\]]/g;
	push @wrong, 'brackets that do not match' if $open != $close;
	return @wrong;
}

# The check itself finds what it is there for.
ok(wrong_in('rate(moe_expertd_nothing_total[1m])'), 'a metric that is not there is found');
ok(wrong_in('moe_expertd_restarts_total'), 'a counter without a rate is found');
ok(wrong_in('rate(moe_expertd_sessions[1m])'), 'a rate of a gauge is found');
ok(wrong_in('moe_expertd_sessions{model="x"}'), 'a label that is not there is found');
ok(wrong_in('sum by (layer) (moe_expertd_sessions)'), 'a group that is not there is found');
ok(!wrong_in('sum by (layer) (rate(moe_expertd_layer_pairs_total{path="cpu"}[1m]))'), 'what is right is not');

my (@wrong, %ids, %taken);
my $queries = 0;
for my $panel (@{$dashboard->{panels}}) {
	my ($at, $title) = ($panel->{gridPos}, $panel->{title});
	push @wrong, "$title: the number $panel->{id} twice" if $ids{$panel->{id}}++;
	for my $x ($at->{x} .. $at->{x} + $at->{w} - 1) {
		push @wrong, "$title: outside" if $x > 23;
		for my $y ($at->{y} .. $at->{y} + $at->{h} - 1) {
			push @wrong, "$title: covers $taken{$x, $y}" if $taken{$x, $y};
			$taken{$x, $y} = $title;
		}
	}
	for my $target (@{$panel->{targets} // []}) {
		$queries++;
		push @wrong, map { "$title: $_" } wrong_in($target->{expr});
		my %labels = map { $_ => 1 } map { keys %{$metrics{$_}{labels} // {}} } $target->{expr} =~ /\b(moe_expertd_\w+)/g;
		push @wrong, map { "$title: its legend has $_" } grep { !$labels{$_} } $target->{legendFormat} =~ /\{\{(\w+)\}\}/g;
	}
	push @wrong, "$title: no query" if $panel->{type} ne 'row' && !@{$panel->{targets} // []};
}
for my $variable (@{$dashboard->{templating}{list}}) {
	next if $variable->{type} ne 'query';
	my ($name, $label) = $variable->{query}{query} =~ /^label_values\((\w+)(?:\{.*\})?, (\w+)\)$/;
	push @wrong, "variable $variable->{name}: $variable->{query}{query}"
		unless defined $name && $metrics{$name} && $metrics{$name}{labels}{$label};
}
push @wrong, map { wrong_in($_->{expr}) } @{$dashboard->{annotations}{list}};
ok($queries > 20 && !@wrong, "$file: $queries queries ask for what is there", @wrong);
done();
