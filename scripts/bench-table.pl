#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# bench-table - lines of "FORMAT COLUMN JSON" (moe-bench ffn) -> the Markdown page of scripts/bench-ffn.sh.
use strict;
use warnings;
use JSON::PP;

my @columns = (
	['qwen3-1', 'Qwen3-30B-A3B, 1 token', 'read'],
	['qwen3-4', '4 tokens', 'read'],
	['deepseek-1', 'DeepSeek-V3, 1 token', 'read'],
	['deepseek-4', '4 tokens', 'read'],
	['gpt-oss-1', 'gpt-oss-20b, 1 token', 'read'],
	['mixtral-128', 'Mixtral-8x7B, 128 tokens an expert', 'compute'],
	['deepseek-32', 'DeepSeek-V3, 32 tokens an expert', 'compute'],
);
my (%cell, @formats, $any, %limits);
while (<>) {
	my ($format, $column, $json) = /^(\S+) (\S+) (\{.*)/ or next;
	my $d = decode_json($json);
	push @formats, $format unless grep { $_ eq $format } @formats;
	$cell{$format}{$column} = $d;
	$any = $d;
	for (['read_limit_gbs', 'GB/s read'], ['compute_limit_gflops', $d->{share_of_compute} > 0 ? 'operations' : '']) {
		my ($key, $name) = @$_;
		next unless $name && $d->{$key};
		push @{$limits{$name}}, $d->{$key};
	}
}
die "bench-table: no measurement in the input\n" unless $any;

sub shell { my $text = `$_[0] 2>/dev/null`; chomp $text; return $text }
sub range { my @v = sort { $a <=> $b } @_; return sprintf '%.0f to %.0f', $v[0], $v[-1] }
my $cpu = shell("sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1");
my $kernel = shell('uname -r');
my $cores = shell('nproc');

print "# Performance\n\nWritten by `make bench` (`scripts/bench-ffn.sh`). ",
	"Machine: $cpu, family ", shell("sed -n 's/^cpu family.*: //p' /proc/cpuinfo | head -n 1"), " model ",
	shell("sed -n 's/^model\\t.*: //p' /proc/cpuinfo | head -n 1"),
	", $cores CPUs, Linux $kernel; kernels: $any->{variant}, $any->{threads} threads.\n\n";
print "Each figure is the best round over the best of the same run's limit: for few tokens the share of streaming reads of the\n",
	"same memory by as many threads (\"of 52\": GB/s; ", range(@{$limits{'GB/s read'}}), " over these runs, as other users of the ",
	"machine let it), weights counted\nas published; for prefill the share of the instructions that the format's dot products are made of.\n\n";
print '| format | ', join(' | ', map { $_->[1] } @columns), " |\n|---|", '---|' x @columns, "\n";
for my $format (@formats) {
	print "| $format |";
	for (@columns) {
		my ($name, undef, $limit) = @$_;
		my $d = $cell{$format}{$name};
		my $share = $d ? $d->{"share_of_$limit"} : 0;
		my $rate = !$d ? '' : $limit eq 'read' ? sprintf ' of %.0f', $d->{read_limit_gbs} : sprintf ', %.0f GOP/s', $d->{gflops}{best};
		print $share ? sprintf(' %.0f %%%s |', 100 * $share, $rate) : ' - |';
	}
	print "\n";
}
print "\nMedians were ", range(map { my $f = $_; map { 100 * $_->{ms}{best} / $_->{ms}{median} } values %{$cell{$f}} } @formats),
	" % of the best. A dash: the shape does not fit the format's blocks.\n";
