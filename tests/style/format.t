#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# format - C looks as .clang-format says. Releases of clang-format differ in taste; the tree follows one of them.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Style;

my $release = 14;

# Debian's names: the release that we follow, else whichever is the system's.
my ($tool, $found);
for my $name ("clang-format-$release", 'clang-format') {
	($tool, $found) = ($name, `$name --version 2>/dev/null` =~ /version (\d+)/);
	last if $found;
}
skip_all('clang-format is not installed') if !$found;
skip_all("clang-format is release $found, the tree follows $release") if $found != $release;

# kmod has the style of the kernel.
my @files = grep { !m{^kmod/} } files(qr/\.[ch]$/);
my $words = `$tool --dry-run --Werror @files 2>&1`;
my %wrong = map { $_ => 1 } $words =~ /^([^:\s]+):\d+:\d+: error/mg;
ok($? == 0, 'clang-format would change nothing (if so: make format)', sort keys %wrong);
done();
