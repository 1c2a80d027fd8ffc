#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# bench-table - lines of "FORMAT COLUMN JSON" (moe-bench ffn) -> this machine's section of scripts/bench-ffn.sh's page.
#
#   bench-table.pl LINES PAGE    prints PAGE with the section in it: in place of the one of the same CPU model, or before
#                                the section "Peers", or at the end. Other machines' sections stay as they are.
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
	['mixtral-32', '32 tokens', 'compute'],
	['deepseek-128', 'DeepSeek-V3, 128 tokens', 'compute'],
	['deepseek-32', '32 tokens', 'compute'],
);
my ($lines, $page) = @ARGV;
my (%cell, @formats, $any, %limits);
open my $in, '<', $lines or die "bench-table: $lines: $!\n";
while (<$in>) {
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
sub cpu { return shell("sed -n 's/^$_[0]\\t*: //p' /proc/cpuinfo | head -n 1") }
sub range { my @v = sort { $a <=> $b } @_; return sprintf '%.0f to %.0f', $v[0], $v[-1] }

my $heading = '## ' . cpu('model name') . ', family ' . cpu('cpu family') . ' model ' . cpu('model');
my $section = "$heading\n\n" . shell('nproc') . ' CPUs, Linux ' . shell('uname -r')
	. "; kernels: $any->{variant}, $any->{threads} threads. Reads: " . range(@{$limits{'GB/s read'}})
	. " GB/s over these runs,\nas other users of the machine let it.\n\n";
$section .= '| format | ' . join(' | ', map { $_->[1] } @columns) . " |\n|---|" . '---|' x @columns . "\n";
for my $format (@formats) {
	$section .= "| $format |";
	for (@columns) {
		my ($name, undef, $limit) = @$_;
		my $d = $cell{$format}{$name};
		my $share = $d ? $d->{"share_of_$limit"} : 0;
		my $rate = !$d ? '' : $limit eq 'read' ? sprintf ' of %.0f', $d->{read_limit_gbs} : sprintf ', %.0f GOP/s', $d->{gflops}{best};
		$section .= $share ? sprintf(' %.0f %%%s |', 100 * $share, $rate) : ' - |';
	}
	$section .= "\n";
}
$section .= "\nMedians were " . range(map { my $f = $_; map { 100 * $_->{ms}{best} / $_->{ms}{median} } values %{$cell{$f}} } @formats)
	. " % of the best. A dash: the shape does not fit the format's blocks.\n";

# The page as what precedes the first section, and sections.
my $text = '';
if (open my $old, '<', $page) { local $/; $text = <$old> // '' }
$text = <<'TEXT' . "\n$text" unless $text =~ /^# /;
# Performance

Each machine has a section, written by `make bench` (`scripts/bench-ffn.sh`) on it. Each figure is the best round over the best of
the same run's limit: for few tokens the share of streaming reads of the same memory by as many threads ("of 52": GB/s), weights
counted as published; for prefill the share of the instructions that the format's dot products are made of, run for as long as a
request takes.
TEXT
my ($begin, @sections) = split /^(?=## )/m, $text;
my ($at) = grep { $sections[$_] =~ /^\Q$heading\E\n/ } 0 .. $#sections;
my ($peers) = grep { $sections[$_] =~ /^## Peers\n/ } 0 .. $#sections;
if (defined $at) { splice @sections, $at, 1, $section }
else { splice @sections, $peers // scalar @sections, 0, $section }
s/\s*\z/\n/ for $begin, @sections;
print join "\n", $begin, @sections;
