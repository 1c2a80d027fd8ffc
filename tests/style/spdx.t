#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# spdx - each source file names its licence in its first lines, and the one that its folder has.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Style;

my %licence = (
	'lib/uapi/' => '(GPL-2.0-only WITH Linux-syscall-note) OR MIT',
	'kmod/' => 'GPL-2.0-only',
);

sub expected {
	my ($path) = @_;
	for my $folder (keys %licence) {
		return $licence{$folder} if index($path, $folder) == 0;
	}
	return 'MIT';
}

# Text that is read as it is, JSON, and some files of Debian's have no comments.
my @sources = grep { !m{(?:^debian/(?:README\.Debian|changelog|copyright|source/format)$|^LICENSE$|\.md$|\.json$|\.txt$|\.gitignore$)} && !m{^tests/.*corpus} } files(qr/./);
my @wrong;
for my $path (@sources) {
	my @head = (lines($path))[0 .. 2];
	my ($found) = map { defined && /SPDX-License-Identifier: (.*?)\s*(?:\*\/|-->)?\s*$/ ? $1 : () } @head;
	my $want = expected($path);
	push @wrong, "$path: no SPDX-License-Identifier in its first three lines" unless defined $found;
	push @wrong, "$path: found $found, expected $want" if defined $found && $found ne $want;
}
ok(@sources > 30, 'there are source files (' . @sources . ')');
ok(!@wrong, 'each names its licence', @wrong);
for my $text (qw(MIT GPL-2.0-only Linux-syscall-note)) {
	ok(-s "LICENSES/$text.txt", "LICENSES/$text.txt is there");
}
done();
