# SPDX-License-Identifier: MIT
#
# TapCount - the harness of `prove`, which also adds its counts to the file $TAP_COUNTS.
#
#   PERL5LIB=scripts TAP_COUNTS=FILE TAP_ERRORS=FOLDER prove --harness TapCount ...
#
# Lines of the file: "count PASSED FAILED SKIPPED" once a run, "failed TEST: ...", "unstable TEST: ..." and "skipped TEST:
# REASON". A test program that crashes, ends with a code other than 0 or has no plan is one failure more, if it did not
# report any.
#
# With TAP_AGAIN=N the first N tests that fail are run twice more, one at a time. One that then passes both times is
# unstable: all is said about it as about a failed one, but it counts as it did at last. One that fails again has failed,
# and so have those that come after N unstable ones on the file.
#
# A machine that fails may be out of reach: of a failed test the file has its seed, what was not ok with the comments
# that follow, where it was when it died, and what it and its daemons last wrote to stderr (scripts/tap-run).
package TapCount;
use strict;
use warnings;
use File::Basename qw(basename);
use TAP::Parser::Aggregator;
use parent 'TAP::Harness';

my $words_max = 30; # of one test program
my $errors_max = 15;
my $report = qr/(?:ERROR|WARNING): \w+Sanitizer|: runtime error: |Assertion .* failed|\*\*\* .* \*\*\*/;

# A parser does not keep its results, so what a person wants to read is noted as it passes.
sub make_parser {
	my ($self, @job) = @_;
	my ($parser, $session) = $self->SUPER::make_parser(@job);
	my $notes = $self->{moe_notes}{$parser} = {skips => [], words => [], seeds => [], last => ''};
	my ($words, $failing) = ($notes->{words}, 0);
	my $note = sub {
		return if @$words >= $words_max;
		push @$words, $_[0];
		print $job[0]->description, ": $_[0]\n";
	};

	$parser->callback(test => sub {
		my ($test) = @_;
		push @{$notes->{skips}}, $test->explanation || 'no reason given' if $test->has_skip;
		$failing = !$test->is_ok;
		$notes->{last} = $test->as_string;
		$note->($test->as_string) if $failing;
	});
	$parser->callback(comment => sub {
		my $text = $_[0]->as_string;
		push @{$notes->{seeds}}, $text if $text =~ /TEST_SEED=/ && !@{$notes->{seeds}};
		$note->($text) if $failing;
	});
	return ($parser, $session);
}

sub end_of {
	my ($parser) = @_;
	my $code = ($parser->wait // 0) >> 8;

	# As scripts/tap-run hands it on.
	return 'out of time' if $code == 124;
	return 'signal ' . ($code - 128) if $code > 128;
	return "exit status $code";
}

sub count_of {
	my ($parser) = @_;
	my $skipped = () = $parser->skipped;
	my $failed = () = $parser->failed;
	my $passed = (() = $parser->passed) - $skipped;

	$skipped++ if defined $parser->skip_all;
	$failed++ if !$failed && $parser->has_problems;
	return ($passed, $failed, $skipped);
}

# The beginning of the first report of a sanitizer or an assertion, else the end.
sub errors_of {
	my ($test) = @_;
	my $name = $test =~ tr{/}{_}r;

	open(my $in, '<', ($ENV{TAP_ERRORS} // '') . "/$name") or return;
	my @lines = <$in>;
	chomp @lines;
	my ($from) = grep { $lines[$_] =~ $report } 0 .. $#lines;
	$from //= @lines > $errors_max ? @lines - $errors_max : 0;
	my $to = $from + $errors_max - 1;
	return map { 'stderr: ' . substr($_, 0, 300) } @lines[$from .. ($to < $#lines ? $to : $#lines)];
}

sub failure_of {
	my ($test, $parser, $notes) = @_;
	my @errors = $parser->parse_errors;
	my @died = grep { /plan/ } @errors;

	return (@{$notes->{seeds}}, @errors, @died ? "the last result: $notes->{last}" : (), @{$notes->{words}},
		errors_of($test));
}

# How many tests may be run again: what $TAP_AGAIN leaves after the unstable ones on the file.
sub again_left {
	open(my $in, '<', $ENV{TAP_COUNTS}) or return $ENV{TAP_AGAIN} // 0;
	return ($ENV{TAP_AGAIN} // 0) - grep { /^unstable .*: passed twice / } <$in>;
}

# Runs a test twice more. Returns the parser of the last time if it passed both times.
sub passes_alone {
	my ($self, $test) = @_;
	my $all = TAP::Parser::Aggregator->new;
	my @names = map { "$test, once more ($_)" } 1, 2;

	$self->jobs(1);
	$self->aggregate_tests($all, map { [$test, $_] } @names);
	my @parsers = $all->parsers(@names);
	return (grep { (count_of($_))[1] } @parsers) ? undef : $parsers[1];
}

sub runtests {
	my ($self, @tests) = @_;
	my $all = $self->SUPER::runtests(@tests);
	my $again = again_left();
	my @sum = (0, 0, 0);

	open(my $out, '>>', $ENV{TAP_COUNTS}) or die "$ENV{TAP_COUNTS}: $!\n";
	my $build = basename($ENV{MOE_BUILD} // 'build');
	for my $test ($all->descriptions) {
		my ($parser) = $all->parsers($test);
		my $name = index($test, "$build/") == 0 ? $test : "$test in $build";
		my @count = count_of($parser);
		if ($count[1]) {
			my @words = ("$count[1] of its tests, " . end_of($parser),
				failure_of($test, $parser, $self->{moe_notes}{$parser}));
			my $passed = $again-- > 0 ? $self->passes_alone($test) : undef;
			my $kind = $passed ? 'unstable' : 'failed';
			unshift @words, 'passed twice when it ran alone; before, what follows failed' if $passed;
			print $out "$kind $name: $_\n" for @words;
			($parser, @count) = ($passed, count_of($passed)) if $passed;
		}
		my $notes = $self->{moe_notes}{$parser};
		$sum[$_] += $count[$_] for 0 .. 2;
		my @reasons = @{$notes->{skips}};
		push @reasons, $parser->skip_all if defined $parser->skip_all;
		print $out "skipped $name: $_\n" for @reasons;
	}
	print $out "count @sum\n";
	close($out) or die "$ENV{TAP_COUNTS}: $!\n";
	return $all;
}

1;
