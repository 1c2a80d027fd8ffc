#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# parser - the reader of Prometheus' text that the other tests use refuses what is wrong; where promtool is installed it
# is of the same mind.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin, "$FindBin::Bin/../style";
use PromText;
use Style;

my $good = <<'END';
# HELP a_total Help with \\ and \n in it
# TYPE a_total counter
a_total{x="1",y="a \"b\" \\ \n"} 1
a_total{x="2"} 1.5e+3
# HELP b_bytes Help
# TYPE b_bytes gauge
b_bytes -Inf
END

# [what it is, text, what is said of it]
my @bad = (
	['a name that begins with a digit', "# HELP 1a x\n# TYPE 1a gauge\n1a 1\n", 'neither HELP nor TYPE'],
	['a TYPE that comes too late', "# HELP a x\na 1\n# TYPE a gauge\n", 'comes after its samples'],
	['a type that does not exist', "# HELP a x\n# TYPE a meter\na 1\n", 'neither HELP nor TYPE'],
	['a second TYPE', "# HELP a x\n# TYPE a gauge\n# TYPE a gauge\na 1\n", 'second TYPE'],
	['no HELP', "# TYPE a gauge\na 1\n", 'no HELP'],
	['a label twice', "# HELP a x\n# TYPE a gauge\na{x=\"1\",x=\"2\"} 1\n", 'labels of a'],
	['an open quotation mark', "# HELP a x\n# TYPE a gauge\na{x=\"1} 1\n", 'labels of a'],
	['a quotation mark in a value', "# HELP a x\n# TYPE a gauge\na{x=\"1\"2\"} 1\n", 'labels of a'],
	['a wrong escape', "# HELP a x\n# TYPE a gauge\na{x=\"\\t\"} 1\n", 'labels of a'],
	['a wrong value', "# HELP a x\n# TYPE a gauge\na 0x1z\n", 'no sample'],
	['no value', "# HELP a x\n# TYPE a gauge\na\n", 'no sample'],
	['an unfinished line', "# HELP a x\n# TYPE a gauge\na 1", 'does not end'],
	['a counter without _total', "# HELP a x\n# TYPE a counter\na 1\n", 'does not end in _total'],
	['a gauge with _total', "# HELP a_total x\n# TYPE a_total gauge\na_total 1\n", 'is no counter'],
	['a unit that is none', "# HELP a_milliseconds x\n# TYPE a_milliseconds gauge\na_milliseconds 1\n", 'base unit'],
);
# What promtool passes over.
my @bad_here = (
	['no TYPE', "# HELP a x\na 1\n", 'no TYPE'],
	['a series twice', "# HELP a x\n# TYPE a gauge\na{x=\"1\",y=\"2\"} 1\na{y=\"2\",x=\"1\"} 2\n", 'twice'],
	['a negative counter', "# HELP a_total x\n# TYPE a_total counter\na_total -1\n", 'negative'],
	['a family in two pieces', "# HELP a x\n# TYPE a gauge\na{x=\"1\"} 1\n# HELP b x\n# TYPE b gauge\nb 1\na{x=\"2\"} 1\n",
		'not in one piece'],
);

sub promtool {
	my ($text) = @_;
	open(my $pipe, '|-', 'promtool check metrics >/dev/null 2>&1') or die "promtool: $!\n";
	print $pipe $text;
	close($pipe);
	return $? == 0;
}
my $have = grep { -x "$_/promtool" } split /:/, $ENV{PATH};

my ($all, @wrong) = PromText::parse($good);
ok(!@wrong, 'nothing is wrong with what is right', @wrong);
ok($all->{a_total}{samples}[0]{labels}{y} eq "a \"b\" \\ \n", 'escapes are undone');
ok($all->{b_bytes}{samples}[0]{value} eq '-Inf' && @{$all->{a_total}{samples}} == 2, 'values and samples are there');
ok(!$have || promtool($good), $have ? 'promtool: the same' : '# SKIP promtool is not installed');
for my $case (@bad, @bad_here) {
	my ($what, $text, $said) = @$case;
	(undef, @wrong) = PromText::parse($text);
	ok((grep { /\Q$said\E/ } @wrong), "$what is found", "found: @wrong");
}
for my $case ($have ? @bad : ()) {
	ok(!promtool($case->[1]), "promtool: $case->[0] is found");
}
done();
