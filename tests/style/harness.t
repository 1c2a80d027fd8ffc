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
delete $ENV{TAP_AGAIN};

sub program {
	my ($name, $text) = @_;
	open(my $out, '>', "$dir/$name") or die "$dir/$name: $!\n";
	print $out "#!/bin/sh\n$text";
	close($out) or die "$dir/$name: $!\n";
	chmod 0755, "$dir/$name";
}

sub lines_of {
	my ($path) = @_;
	open(my $in, '<', $path) or return 0;
	return scalar(() = <$in>);
}

# The last lines of ./check for these programs, and its code.
sub summary {
	return of_jobs(1, @_);
}

sub of_jobs {
	my ($jobs, @names) = @_;
	unlink "$dir/counts";
	mkdir "$dir/errors";
	local @ENV{qw(TAP_COUNTS TAP_ERRORS PERL5LIB TAP_TIMEOUT)} = ("$dir/counts", "$dir/errors", 'scripts', 60);
	my $live = `prove --jobs $jobs --harness TapCount --exec scripts/tap-run @{[map { "$dir/$_" } @names]} 2>&1 </dev/null`;
	my $text = `scripts/test-summary $dir/counts`;
	return ($text, $? >> 8, $live);
}

# A program that fails until it has run so often.
sub fails_until {
	my ($name, $times) = @_;
	program($name, "echo . >>$dir/$name.runs\necho \"run \$(wc -l <$dir/$name.runs)\" >&2\n" .
		"if [ \$(wc -l <$dir/$name.runs) -le $times ]; then echo 'not ok 1 - early'; else echo 'ok 1 - late'; fi\n" .
		"echo 'ok 2 # SKIP no such thing'\necho 1..2\n");
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

{
	local $ENV{TAP_AGAIN} = 2;
	fails_until("once$_", 1) for 1 .. 3;
	($text, $code) = summary('once1', 'good');
	ok($code == 0, 'a test that fails once, and passes twice alone: exit code 0');
	has($text, qr/^unstable \S+once1 in build\S*: passed twice when it ran alone; before, what follows failed\n/m, 'it is named');
	has($text, qr/^unstable .*: not ok 1 - early\n.*: stderr: run 1$/m, 'with what failed, and its words of that time');
	has($text, qr/^2 passed, 0 failed, 2 skipped\n\z/m, 'it counts as it did at last');
	ok(lines_of("$dir/once1.runs") == 3, 'it ran twice more');

	unlink "$dir/once1.runs";
	($text, $code) = summary('once1', 'once2', 'once3');
	ok($code == 1, 'more of them than may be: exit code 1');
	ok((() = $text =~ /: passed twice/g) == 2, 'two of them are unstable');
	has($text, qr/^failed \S+once3 in build\S*: 1 of its tests/m, 'the third has failed');

	fails_until('twice', 2);
	($text, $code) = summary('twice');
	ok($code == 1, 'a test that fails again alone: exit code 1');
	has($text, qr/^failed \S+twice in build\S*: 1 of its tests/m, 'it has failed');
	ok($text !~ /unstable/, 'and is not called unstable');
}
fails_until('plain', 1);
($text, $code) = summary('plain');
ok($code == 1 && lines_of("$dir/plain.runs") == 1, 'unless it is asked for, nothing is run again');

# `quiet` ends when `last` has run, which two at a time begins after `first`.
program('quiet', "printf 'ok 1 - be'\nn=0\nwhile [ ! -e $dir/last-ran ] && [ \$n -lt 200 ]; do sleep 0.1; n=\$((n + 1)); done\n" .
	"echo gun\n[ \$n -lt 200 ] || printf 'not '\necho 'ok 2 - the others went on'\necho 1..2\n");
program('first', "echo 'ok 1'\necho 1..1\n");
program('last', "touch $dir/last-ran\necho 'ok 1'\necho 1..1\n");
($text, $code) = of_jobs(2, 'quiet', 'first', 'last');
has($text, qr/^4 passed, 0 failed, 0 skipped\n\z/m, 'a test that has written half a line holds up no other');

{
	open(my $out, '>', "$dir/counts") or die "$dir/counts: $!\n";
	print $out "skipped the unit tests in build: 5 minutes had gone (CHECK_MINUTES)\ncount 0 0 1\n";
	close($out);
	$text = `scripts/test-summary $dir/counts`;
	ok($? >> 8 == 1, 'no time for a single test: exit code 1');
	has($text, qr/^0 passed, 0 failed, 1 skipped\n\z/m, 'of which nothing has passed');
}

program("many$_", "for i in \$(seq 50); do echo \"not ok \$i - wrong\"; done\necho 1..50\nexit 1\n") for 1 .. 12;
($text, $code) = summary(map { "many$_" } 1 .. 12);
my @failed = grep { /^failed/ } split /\n/, $text;
ok(@failed <= 100, 'however much failed, it is at most 100 lines: ' . @failed);
ok((grep { $text =~ /many$_ in/ } 1 .. 12) == 12, 'each of them has its share');
has($text, qr/lines left out/, 'which says that there is more');
done();
