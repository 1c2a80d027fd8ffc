#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# harness - the end of ./check says of each failed test what a person far from the machine needs: its seed, what was not
# ok, where it died and what it wrote to stderr; and nothing of what passing tests wrote.
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::Bin;
use Style;

my $dir = tempdir(CLEANUP => 1);

sub program {
	my ($name, $text) = @_;
	open(my $out, '>', "$dir/$name") or die "$dir/$name: $!\n";
	print $out "#!/bin/sh\n$text";
	close($out) or die "$dir/$name: $!\n";
	chmod 0755, "$dir/$name";
}

# The last lines of ./check for these programs, and its code.
sub summary {
	my (@names) = @_;
	unlink "$dir/counts";
	mkdir "$dir/errors";
	local @ENV{qw(TAP_COUNTS TAP_ERRORS PERL5LIB TAP_TIMEOUT)} = ("$dir/counts", "$dir/errors", 'scripts', 60);
	my $live = `prove --harness TapCount --exec scripts/tap-run @{[map { "$dir/$_" } @names]} 2>&1 </dev/null`;
	my $text = `scripts/test-summary $dir/counts`;
	return ($text, $? >> 8, $live);
}

sub has {
	my ($text, $pattern, $name) = @_;
	ok($text =~ $pattern, $name, split /\n/, $text);
}

program('good', "echo chatter >&2\necho '# TEST_SEED=3'\necho 'ok 1 - fine'\necho 'ok 2 # SKIP no such thing'\necho 1..2\n");
my ($text, $code, $live) = summary('good');
ok($code == 0, 'a passing test: exit code 0');
ok("$text$live" !~ /chatter/, 'what it wrote to stderr is not shown', split /\n/, "$text$live");
has($text, qr/^skipped \S+good in build\S*: no such thing$/m, 'what it skipped is');
has($text, qr/^1 passed, 0 failed, 1 skipped\n\z/m, 'the last line counts');

program('wrong', "echo '# TEST_SEED=77'\nseq -f 'line %g' 100 >&2\necho 'ok 1 - fine'\necho 'not ok 2 - odd'\n" .
	"echo '#   failed at odd.c:5'\necho 'ok 3 - fine again'\necho '# of no interest'\necho 1..3\nexit 1\n");
($text, $code) = summary('wrong', 'good');
ok($code == 1, 'a failing test: exit code 1');
has($text, qr/^failed \S+wrong\S* in build\S*: 1 of its tests, exit status 1$/m, 'its name and its end');
has($text, qr/: # TEST_SEED=77$/m, 'its seed');
has($text, qr/: not ok 2 - odd\n.*: #   failed at odd\.c:5$/m, 'what was not ok, and where');
ok($text !~ /of no interest/, 'nothing of what came after');
has($text, qr/: stderr: line 86\n(?:.*\n){13}.*: stderr: line 100\n(?!.*stderr)/m, 'the last 15 lines of stderr');

program('dead', "echo 'ok 1 - the last step'\nseq 30 >&2\necho '==5==ERROR: AddressSanitizer: heap-use-after-free' >&2\n" .
	"seq -f '    #%g in function' 40 >&2\nkill -SEGV \$\$\n");
($text, $code) = summary('dead');
ok($code == 1, 'a test that dies: exit code 1');
has($text, qr/: 1 of its tests, signal 11$/m, 'the signal');
has($text, qr/: the last result: ok 1 - the last step$/m, 'how far it came');
has($text, qr/: stderr: ==5==ERROR: AddressSanitizer: .*\n(?:.*function\n){14}(?!.*function)/m,
	"the beginning of the sanitizer's report");

program("many$_", "for i in \$(seq 50); do echo \"not ok \$i - wrong\"; done\necho 1..50\nexit 1\n") for 1 .. 12;
($text, $code) = summary(map { "many$_" } 1 .. 12);
my @failed = grep { /^failed/ } split /\n/, $text;
ok(@failed <= 100, 'however much failed, it is at most 100 lines: ' . @failed);
ok((grep { $text =~ /many$_ in/ } 1 .. 12) == 12, 'each of them has its share');
has($text, qr/lines left out/, 'which says that there is more');
done();
