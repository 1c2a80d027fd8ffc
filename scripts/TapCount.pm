# SPDX-License-Identifier: MIT
#
# TapCount - the harness of `prove`, which also adds its counts to the file $TAP_COUNTS.
#
#   PERL5LIB=scripts TAP_COUNTS=FILE prove --harness TapCount ...
#
# Lines of the file: "count PASSED FAILED SKIPPED" once a run, "failed TEST: ..." and "skipped TEST: REASON". A test
# program that crashes, ends with a code other than 0 or has no plan is one failure more, if it did not report any.
package TapCount;
use strict;
use warnings;
use File::Basename qw(basename);
use parent 'TAP::Harness';

my $words_max = 60; # of one test program

# A parser does not keep its results, so what a person wants to read is noted as it passes: reasons for skipping, and
# what failed with the comments that follow it.
sub make_parser {
	my ($self, @job) = @_;
	my ($parser, $session) = $self->SUPER::make_parser(@job);
	my ($skips, $words, $failing) = ([], [], 0);

	$self->{moe_skips}{$parser} = $skips;
	$self->{moe_words}{$parser} = $words;
	$parser->callback(test => sub {
		my ($test) = @_;
		push @$skips, $test->explanation || 'no reason given' if $test->has_skip;
		$failing = !$test->is_ok;
		push @$words, $test->as_string if $failing && @$words < $words_max;
	});
	$parser->callback(comment => sub {
		push @$words, $_[0]->as_string if $failing && @$words < $words_max;
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

sub runtests {
	my ($self, @tests) = @_;
	my $all = $self->SUPER::runtests(@tests);
	my @sum = (0, 0, 0);

	open(my $out, '>>', $ENV{TAP_COUNTS}) or die "$ENV{TAP_COUNTS}: $!\n";
	my $build = basename($ENV{MOE_BUILD} // 'build');
	for my $test ($all->descriptions) {
		my ($parser) = $all->parsers($test);
		my $name = index($test, "$build/") == 0 ? $test : "$test in $build";
		my @count = count_of($parser);
		$sum[$_] += $count[$_] for 0 .. 2;
		if ($count[1]) {
			print $out "failed $name: $count[1] of its tests, ", end_of($parser), "\n";
			print $out "failed $name: $_\n" for $parser->parse_errors, @{$self->{moe_words}{$parser}};
		}
		my @reasons = @{$self->{moe_skips}{$parser}};
		push @reasons, $parser->skip_all if defined $parser->skip_all;
		print $out "skipped $name: $_\n" for @reasons;
	}
	print $out "count @sum\n";
	close($out) or die "$ENV{TAP_COUNTS}: $!\n";
	return $all;
}

1;
