#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# text - plain text in good order: line ends, blanks, indentation, width, length, and no words that put work off.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Style;

my $columns = 120;   # .clang-format; tabs are eight wide
my $lines_good = 600; # a rule of thumb ...
my $lines_max = 800;  # ... and the end of it
# In two parts, so that this file does not find itself.
my @later = map { join '', @$_ } ['TO', 'DO'], ['FIX', 'ME'], ['XX', 'X'];

sub width {
	my ($text) = @_;
	utf8::decode($text);
	1 while $text =~ s/\t/' ' x (8 - $-[0] % 8)/e;
	return length $text;
}

my (%wrong, @long);
for my $path (files(qr/./)) {
	my @lines = lines($path);
	my $c = $path =~ /\.[ch]$/;
	my $at = 0;

	push @{$wrong{'each file ends with a newline'}}, $path if @lines && $lines[-1] !~ /\n\z/;
	for (@lines) {
		$at++;
		chomp(my $line = $_);
		push @{$wrong{'no trailing blanks, no carriage returns'}}, "$path:$at" if $line =~ /[ \t\r]$/;
		push @{$wrong{'no blank before a tab'}}, "$path:$at" if $line =~ / \t/;
		push @{$wrong{'C is indented with tabs'}}, "$path:$at" if $c && $line =~ /^ {8}/;
		push @{$wrong{'meson, JSON and Markdown have no tabs'}}, "$path:$at"
			if $path =~ /(?:meson\.build|\.json|\.md)$/ && $line =~ /\t/;
		push @{$wrong{"C is at most $columns columns wide"}}, "$path:$at: " . width($line)
			if $c && width($line) > $columns && $line !~ m{https?://};
		for my $word (@later) {
			push @{$wrong{'nothing is put off'}}, "$path:$at: $word" if $line =~ /\b$word\b/;
		}
	}
	next unless $path =~ /\.(?:[chS]|pm|t|sh|pl)$/;
	push @long, [scalar @lines, $path] if @lines > $lines_good;
}

for my $name ('each file ends with a newline', 'no trailing blanks, no carriage returns', 'no blank before a tab',
	      'C is indented with tabs', 'meson, JSON and Markdown have no tabs',
	      "C is at most $columns columns wide", 'nothing is put off') {
	my @found = @{$wrong{$name} // []};
	ok(!@found, $name, @found);
}
print "# over $lines_good lines: $_->[1] ($_->[0])\n" for @long;
my @over = grep { $_->[0] > $lines_max } @long;
ok(!@over, "no source file is over $lines_max lines", map { "$_->[1]: $_->[0]" } @over);
done();
