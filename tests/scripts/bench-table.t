#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# bench-table - a machine's table takes the place of its own last one only, and stands before the peers.
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib "$FindBin::Bin/../style";
use Style;

my $folder = tempdir(CLEANUP => 1);

sub page {
	my ($text) = @_;
	open my $out, '>', "$folder/page" or die;
	print $out $text;
	close $out;
	return qx(perl scripts/bench-table.pl $folder/lines $folder/page);
}

open my $lines, '>', "$folder/lines" or die;
print $lines 'q4_0 qwen3-1 {"variant": "avx512", "threads": 2, "ms": {"best": 3, "median": 4}, "read_limit_gbs": 50, ',
	'"share_of_read": 0.91, "gflops": {"best": 7}, "compute_limit_gflops": 9, "share_of_compute": 0.1}', "\n";
close $lines;

my $fresh = page('');
my ($heading) = $fresh =~ /^(## .*, family \d+ model \d+)$/m;
ok($heading && $fresh =~ /^# Performance\n/ && scalar($fresh =~ /^\| q4_0 \| 91 % of 50 \| - \|/m),
	'a page without text: title, heading and row', split /\n/, $fresh);
ok(page($fresh) eq $fresh, 'once more: the same page');

my $others = "# Title\n\nIntroduction.\n\n## Another, family 1 model 2\n\n| int8 |\n\n## Peers\n\nOf peers.\n";
my $added = page($others);
ok(scalar($added =~ /\A# Title\n\nIntroduction.\n\n## Another, family 1 model 2\n\n\| int8 \|\n\n\Q$heading\E\n.*\n\n## Peers\n\nOf peers.\n\z/s),
	'the introduction, another machine and the peers stay', split /\n/, $added);
ok(page($added =~ s/91 %/12 %/r) eq $added, 'only the section of this machine is replaced');
ok(scalar(page("## Peers\n\nOf peers.\n") =~ /\A# Performance\n.*^\Q$heading\E\n.*^## Peers\n\nOf peers.\n\z/ms),
	'a page without a title gets one');
done();
