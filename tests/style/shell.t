#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# shell - the shell scripts are POSIX sh, and shellcheck has nothing to say.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Style;

my @scripts = grep { my ($first) = lines($_); defined $first && $first =~ m{^#!.*\b(?:ba|da)?sh\b} } files(qr/./);
my @bash = grep { my ($first) = lines($_); $first !~ m{^#!/bin/sh$} } @scripts;
my @not_executable = grep { !-x $_ } @scripts;
# Sourced, so without a first line of that kind.
my @all = (@scripts, files(qr/\.sh$/));

ok(@scripts >= 3, 'there are scripts (' . @scripts . ')');
ok(!@bash, 'each begins with #!/bin/sh', @bash);
ok(!@not_executable, 'each is executable', @not_executable);
my @wrong = grep { system('sh', '-n', $_) != 0 } @all;
ok(!@wrong, 'each is valid', @wrong);
if (system('shellcheck --version >/dev/null 2>&1') == 0) {
	my $words = `shellcheck -x -f gcc @all 2>&1`;
	ok($? == 0, 'shellcheck has nothing to say', split /\n/, $words);
} else {
	ok(1, '# SKIP shellcheck is not installed');
}
done();
