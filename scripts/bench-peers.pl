#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# bench-peers - LINES FILE: the Markdown page FILE (there may be none) with a section "Peers" made of lines of
# `moe-bench compare --json`, in the place of the section that it had.
use strict;
use warnings;
use JSON::PP;

my ($lines, $page) = @ARGV;
open(my $in, '<', $lines) or die "bench-peers: $lines: $!\n";
my @runs = map { decode_json($_) } <$in>;
die "bench-peers: no measurement in $lines\n" unless @runs;

my $text = '';
if (open(my $old, '<', $page)) {
	local $/;
	$text = <$old> // '';
}
$text =~ s/\n*^## Peers\n.*?(?=^## |\z)/\n\n/ms;
my $behind = $text =~ s/\n*(^## GPU\n.*)\z//ms ? $1 : ''; # bench-device's
print $text =~ s/\n*\z//r, $text =~ /\S/ ? "\n\n" : '';

my (@names, %why);
for my $run (@runs) {
	for my $row (@{$run->{rows}}) {
		push @names, $row->{name} unless grep { $_ eq $row->{name} } @names;
	}
	$why{"$_->{name}: $_->{why}"} = 1 for @{$run->{absent}};
}

# From some tokens an expert on, arithmetic takes longer than reading.
sub by_arithmetic { my ($run) = @_; return $run->{tokens} * $run->{shape}{topk} > 16 * $run->{shape}{active_experts} }

# By the best: the rate beside the limit that binds, and for a peer its time over the pool's.
sub cell {
	my ($run, $name) = @_;
	my ($row) = grep { $_->{name} eq $name } @{$run->{rows}} or return '-';
	my $rate = by_arithmetic($run) ? sprintf('%.0f GOP/s', $row->{gflops}{best}) : sprintf('%.1f GB/s', $row->{weight_gbs}{best});
	return sprintf('%.3f ms, %s', $row->{ms}{best}, $rate) . ($name eq $names[0] ? '' : sprintf(', **%.2f**', $row->{ratio}{median}));
}

print "## Peers\n\nWritten by `scripts/bench-compare.sh`: `moe-bench compare --check`, $runs[0]{threads} threads, kernels ",
	"$runs[0]{variant}.\nEveryone computes the same requests on the same weights in one run, in turn; times and rates are the ",
	"best round's,\nthe limit is that of the same run. Bold is a peer's time over the pool's, the median of the rounds: above 1 ",
	"the pool\nis the faster. A peer that is called packed has a second copy of the weights in a layout of its own.\n\n";
print '| shape | format | tokens | limit | ', join(' | ', @names), " |\n|---|---|---|---|", '---|' x @names, "\n";
for my $run (@runs) {
	my $limit = by_arithmetic($run) ? sprintf('%.0f GOP/s', $run->{compute_limit_gflops}) : sprintf('%.1f GB/s', $run->{read_limit_gbs});
	print "| $run->{shape}{name} | $run->{format} | $run->{tokens} | $limit | ", join(' | ', map { cell($run, $_) } @names), " |\n";
}
print "\nAbsent: ", join('; ', sort keys %why), ".\n" if %why;
print "\n$behind" if $behind;
