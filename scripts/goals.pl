#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# goals - round trips and restarts: what this machine reaches beside the goals for them.
#
#   scripts/goals.pl [--runs N]
#
# Runs `moe-bench ring` and `moe-bench restart` N times (default 5) against a private daemon that serves models/tinymoe,
# and prints the median of each figure. For a machine with nothing else on it. Exit codes: 0 no figure is more than a
# fifth beyond its goal, which is how far quiet runs differ, 1 one is, or something failed, 2 usage.
use strict;
use warnings;
use Cwd 'abs_path';
use File::Basename 'dirname';
use File::Temp 'tempdir';
use JSON::PP;

my $SPREAD = 1.2;
my $runs = 5;
my $build = $ENV{MOE_BUILD} // 'build';

chdir dirname(abs_path($0)) . '/..' or die "goals: $!\n";
if (@ARGV == 2 && $ARGV[0] eq '--runs' && $ARGV[1] =~ /^[1-9]\d*$/) {
	$runs = $ARGV[1];
} elsif (@ARGV) {
	open my $self, '<', $0 or die "goals: $!\n";
	my $help = join '', map { s/^# ?//r } (<$self>)[3 .. 9];
	print {$ARGV[0] =~ /^(-h|--help)$/ ? *STDOUT : *STDERR} $help;
	exit($ARGV[0] =~ /^(-h|--help)$/ ? 0 : 2);
}

my $dir = tempdir('moe-goals.XXXXXX', TMPDIR => 1, CLEANUP => 1);
my $keeper = start();
my %seen;
my $failed = 0;

$SIG{INT} = $SIG{TERM} = sub { exit 130 };

END {
	my $code = $?;
	if ($keeper) {
		kill 'TERM', $keeper;
		waitpid $keeper, 0;
	}
	$? = $code;
}

# A daemon that a keeper starts again however often it is killed.
sub start {
	pipe my $ready, my $end or die "goals: $!\n";
	my $pid = fork() // die "goals: $!\n";
	if (!$pid) {
		open STDERR, '>', "$dir/log" or die "goals: $!\n";
		open STDOUT, '>&', \*STDERR or die "goals: $!\n";
		open my $three, '>&', $end or die "goals: $!\n";
		fcntl $three, 2, 0; # F_SETFD: it outlives exec
		$ENV{MOE_CRASH_PLAN} = '/dev/null';
		exec "$build/daemon/moe-expertd", '--keep', '--socket', "$dir/socket", '--model', 'models/tinymoe', '--ready-fd',
			fileno $three or die "goals: $build/daemon/moe-expertd: $!\n";
	}
	close $end;
	die "goals: the daemon did not start:\n" . `cat $dir/log` unless <$ready>;
	return $pid;
}

sub bench {
	my $text = `$build/tools/moe-bench @_ --daemon $dir/socket --json`;
	die "goals: moe-bench @_ failed\n" if $?;
	return decode_json($text);
}

sub median { my @sorted = sort { $a <=> $b } @_; return $sorted[@sorted / 2] }

for my $run (1 .. $runs) {
	my $ring = bench('ring');
	my ($nop, $bare) = @$ring{'nop', 'bare'};
	my $restart = bench('restart', '--samples', 100, '--seconds', 0.1);

	push @{$seen{p50}}, $nop->{busy_us}{p50} / $bare->{shm_us}{p50};
	push @{$seen{p99}}, $nop->{busy_us}{p99} / $bare->{shm_us}{p99};
	push @{$seen{idle}}, $nop->{idle_ratio};
	push @{$seen{ready}}, $restart->{kill_to_ready_ms}{p99};
	push @{$seen{bytes}}, $restart->{weight_bytes_read};
	print STDERR "\rgoals: $run of $runs runs " if -t STDERR;
}
print STDERR "\r\e[K" if -t STDERR;

for (['p50', 'a busy NOP, p50 to the p50 of a bare trip through shared memory', 1.5],
	['p99', 'the same, p99 to p99', 3],
	['idle', 'a NOP after idleness, to the shorter bare wake-up after as long', 1.5],
	['ready', 'kill -9 to ready under 64 sessions, p99, ms', 50],
	['bytes', 'bytes of weights read again after it', 0]) {
	my ($key, $what, $goal) = @$_;
	my $value = median(@{$seen{$key}});
	my $word = $value <= $goal ? 'met' : $value <= $goal * $SPREAD ? 'missed' : 'far off';

	printf "%-70s %8.4g, goal %-4g %s (%s)\n", $what, $value, $goal, $word, join ', ', map { sprintf '%.4g', $_ } @{$seen{$key}};
	$failed = 1 if $word eq 'far off';
}
exit $failed;
