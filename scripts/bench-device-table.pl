#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# bench-device-table - what `moe-bench device --json` has measured -> the section of docs/PERFORMANCE.md.
#
#   bench-device-table.pl DEVICE.json DRIVER MEMCHECK RACECHECK
#   bench-device-table.pl --chart DEVICE.json FFN.json    the input of scripts/breakeven.pl
#
# Figures of a simulated driver are refused.
use strict;
use warnings;
use JSON::PP;
use POSIX qw(strftime);

my $chart = @ARGV && $ARGV[0] eq '--chart' && shift;
my ($path, @words) = @ARGV;
die "usage: bench-device-table.pl [--chart] DEVICE.json ...\n" unless @words == ($chart ? 1 : 3);

sub content {
	open my $file, '<', $_[0] or die "bench-device-table: $_[0]: $!\n";
	local $/;
	return <$file>;
}

my $d = decode_json(content($path));
die "bench-device-table: $path: the driver is simulated: its figures say nothing\n" if $d->{device}{simulated};
my $date = strftime('%Y-%m-%d', gmtime);
my ($cpu) = content('/proc/cpuinfo') =~ /^model name\s*: (.*)/m;

if ($chart) {
	my @ffn = map { decode_json($_) } grep { /^\{/ } split /\n/, content($words[0]);
	print JSON::PP->new->canonical->pretty->encode({date => $date, machine => $cpu, ffn => \@ffn, device => $d});
	exit;
}

sub percent { my ($x) = @_; return defined $x ? sprintf '%.0f %%', 100 * $x : '-' }
sub number { my ($x) = @_; return defined $x ? sprintf '%.4g', $x : '-' }
sub both { my ($x) = @_; return $x ? number($x->{best}) . ' (' . number($x->{median}) . ')' : '-' }
sub mib { return sprintf '%.2f MiB', $_[0] / (1 << 20) }

sub table {
	my ($head, @rows) = @_;
	return '' unless @rows;
	return join '', map { "| $_ |\n" } join(' | ', @$head), join(' | ', ('---') x @$head), map { join ' | ', @$_ } @rows;
}

my ($driver, $memcheck, $racecheck) = @words;
printf "## GPU\n\nWritten by `scripts/bench-device.sh` on %s: `moe-bench device --check`. %s, driver %s, CUDA %d.%d; host: %s.\n" .
	"compute-sanitizer on small layers and copies: memcheck %s, racecheck %s.\n\n", $date, $d->{device}{name}, $driver,
	$d->{device}{cuda} / 1000, $d->{device}{cuda} % 1000 / 10, $cpu // 'unknown', $memcheck, $racecheck;
print "Rates are the best of the rounds, with the median in brackets; shares are of the best of the limit in the same rounds.\n\n";
print "Goals:\n\n", table(['goal', 'found', 'expected', ''],
	map { [$_->{what}, number($_->{found}), "at $_->{limit} " . number($_->{expected}), $_->{met} ? 'met' : '**not met**'] }
		@{$d->{goals}});
for (['lane', 'read in place'], ['lane_copy', 'copied to the device first']) {
	my ($key, $answers) = @$_;
	my $l = $d->{$key} or next;
	printf "\nA lane's step with an empty request, answers %s, %d of them, microseconds, p50 and p99: %s and %s; its other commands " .
		"alone %s and %s, so the round trip %s and %s; a bare hop %s and %s.\n", $answers, $l->{steps},
		map { number($l->{$_}{p50}), number($l->{$_}{p99}) } qw(step_us work_us round_trip_us bare_hop_us);
}
print "\nThe addition of an answer alone, microseconds, p50 (p99):\n\n", table(['tokens', 'bytes', 'read in place', 'copied first'],
	map { my $r = $_; [$r->{tokens}, mib($r->{bytes}), map { number($r->{$_}{p50}) . ' (' . number($r->{$_}{p99}) . ')' }
		qw(read_us copy_us)] } @{$d->{answers}}) if @{$d->{answers} // []};
print "\nThe link, GB/s (managed memory is there for comparison only):\n\n", table(['bytes', 'pinned', 'batched', 'zero copy', 'managed'],
	map { my $r = $_; [mib($r->{bytes}), map { both($r->{"${_}_gbs"}) } qw(pinned batched zero_copy managed)] } @{$d->{link}});
print "\nFills, GB/s:\n\n", table(['model', 'how', 'ranks', 'bytes', 'copies', 'bare', 'share', 'whole step'],
	map { [@$_{qw(model how tp_size)}, mib($_->{bytes}), both($_->{gbs}), both($_->{bare_gbs}), percent($_->{share}),
		both($_->{step_gbs})] } @{$d->{fills}}) if $d->{fills};
print "\nSteps at the cost model's split, microseconds:\n\n",
	table(['tokens', 'in flight', 'T_wait', 'device', 'CPU', 'T_ideal', 'T_step', 'over'],
	map { my $r = $_; [@$r{qw(tokens in_flight)}, map { number($r->{$_}) } qw(t_wait_us device_us cpu_us t_ideal_us t_step_us
		step_over_ideal)] } @{$d->{overlap}}) if $d->{overlap};
printf "\nExperts of %s:\n\n", $d->{shape}{name} // '?';
print table(['format', 'tokens', 'path', 'GB/s of weights', 'of reading', 'TFLOP/s', 'of dense', 'by', 'largest error'],
	map { [@$_{qw(format tokens path)}, both($_->{weight_gbs}), percent($_->{share_of_read}), both($_->{tflops}),
		percent($_->{share_of_dense}), $_->{dense_limit}, number($_->{max_rel_error})] } @{$d->{experts}});
print "\nWhen streaming, the CPU or both are faster: [BREAKEVEN.md](BREAKEVEN.md).\n";
for (['Not measured', 'absent'], ['Failed', 'failed']) {
	my ($title, $key) = @$_;
	print "\n$title: ", join('; ', map { "$_->{what}: $_->{why}" } @{$d->{$key}}), "\n" if @{$d->{$key} // []};
}
