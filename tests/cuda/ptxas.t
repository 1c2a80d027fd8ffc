#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# ptxas - what ptxas said of the CUDA kernels: each is there for each architecture, keeps its numbers in registers but for a few, and
# needs no more shared memory than any block has without asking.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/../style";
use Style;

my $shared_max = 48 * 1024;
my $spill_max = 16; # a few words; room for one more block at a time is worth them
my @architectures = qw(sm_80 sm_90 sm_100);

my @words = ("$ENV{MOE_BUILD}/kernels/cuda-ptxas.txt", "$ENV{MOE_BUILD}/tools/worker-ptxas.txt");
skip_all('this build has no nvcc') unless -e $words[0];

# The lists in the header: the kernels, and of the products their variants.
my $header = join '', lines('kernels/cuda/cuda-kernels.h');
my ($variants) = $header =~ /#define CUDA_VARIANTS\(V, a, b\)(.*?)\n\n/s;
my @products = $header =~ /#define CUDA_\w+\(name, family, bits, X, path\) X\(moe_##path##_(\w+)_##name,/g;
my ($kernels) = $header =~ /#define CUDA_KERNELS\(X\)(.*?)\n\n/s;
my %expected = map { $_ => 1 } $kernels =~ /X\((moe_\w+),/g;
for my $path ($kernels =~ /CUDA_PRODUCTS\(X, (\w+)\)/g) {
	for my $product (@products) {
		$expected{"moe_${path}_${product}_$_"} = 1 for $variants =~ /V\((\w+),/g;
	}
}
# And the sample worker's.
my $dense = join '', lines('tools/worker/cuda/dense-kernels.h');
my ($worker) = $dense =~ /#define DENSE_KERNELS\(X\)(.*?)\n\n/s;
$expected{$_} = 1 for $worker =~ /X\((worker_\w+),/g;

my (%seen, @spills, @greedy, $at);
for my $words (@words) {
	open my $file, '<', $words or die "$words: $!";
	while (<$file>) {
		$at = "$1 $2", $seen{$1}{$2} = 1 if /Compiling entry function '(\w+)' for '(\w+)'/;
		push @spills, "$at: $_" if /(\d+) bytes spill stores/ && $1 > $spill_max;
		push @greedy, "$at: $1 bytes" if /(\d+) bytes smem/ && $1 > $shared_max;
	}
	close $file;
}

my @missing;
for my $kernel (sort keys %expected) {
	push @missing, map { "$kernel for $_" } grep { !$seen{$kernel}{$_} } @architectures;
}
my @unknown = grep { !$expected{$_} } sort keys %seen;
ok(keys %expected > 40, 'there are kernels (' . keys(%expected) . ')');
ok(!@missing, "each is compiled for @architectures", @missing);
ok(!@unknown, 'and no other', @unknown);
ok(!@spills, "none spills more than $spill_max bytes of registers", @spills);
ok(!@greedy, "none has more than $shared_max bytes of shared memory", @greedy);
done();
