#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# breakeven - for which batches and caches experts are better streamed to a GPU, computed by the CPU, or both: a picture.
#
#   breakeven.pl INPUT.json >PICTURE.svg
#   breakeven.pl --lines INPUT.json       what the picture shows, as text: break-even shares and layer times
#   breakeven.pl --choose COPY A B A B    of lines "hits missing room pairs" (pairs of each expert) the cost model's
#                                         choice and its nanoseconds; COPY: ns of one copy, A, B: of the GPU's line,
#                                         then of the CPU's
#
# INPUT has "ffn", objects of `moe-bench ffn --json` of one shape and format and different tokens, and either "device", the
# object of `moe-bench device --json` of the same shape on a GPU, or "published", rates with their sources. "cpu_times"
# {"factor", "why"} assumes a faster CPU than the one that was measured, and the picture says so. The model is the library's
# (lib/ncopy.h): docs/BREAKEVEN.md says it in full.
use strict;
use warnings;
use JSON::PP;
use List::Util qw(min max);

my $tokens_max = 4096;
my $steps = 4;    # of the picture's columns in each doubling of the tokens
my $shares = 40;  # of its rows

# -- the library's model ------------------------------------------------------------------------------------------

# a * experts + b * pairs: least squares of the relative error over [experts, pairs, ns], neither negative.
sub fit {
	my @samples = @_;
	my ($ee, $ep, $pp, $e, $p) = (0) x 5;
	for (@samples) {
		my ($x, $y) = ($_->[0] / $_->[2], $_->[1] / $_->[2]);
		$ee += $x * $x, $ep += $x * $y, $pp += $y * $y, $e += $x, $p += $y;
	}
	my $det = $ee * $pp - $ep * $ep;
	die "breakeven: samples with different tokens for each expert are needed\n" unless $det > 1e-6 * $ee * $pp;
	my ($a, $b) = (($e * $pp - $p * $ep) / $det, ($p * $ee - $e * $ep) / $det);
	($a, $b) = (0, $p / $pp) if $a < 0;
	($a, $b) = ($e / $ee, 0) if $b < 0;
	return {a => $a, b => $b};
}

sub ns_of { my ($line, $experts, $pairs) = @_; return $line->{a} * $experts + $line->{b} * $pairs }

# The split of the missing experts that ends first, and when; each expert has so many pairs. In the mean over batches there
# are fractions of experts: all of them is one of the splits.
sub choose {
	my ($m, $hits, $missing, $room, $pairs) = @_;
	my ($best, $best_ns);
	my $most = min($missing, $room);
	for my $n (0 .. int $most, $most > int $most ? $most : ()) {
		my $gpu = $m->{copy} * $n + ns_of($m->{gpu}, $hits + $n, ($hits + $n) * $pairs);
		my $cpu = ns_of($m->{cpu}, $missing - $n, ($missing - $n) * $pairs);
		my $ns = max($gpu, $cpu);
		($best, $best_ns) = ($n, $ns) if $n == 0 || $ns < $best_ns;
	}
	return ($best, $best_ns);
}

# -- a layer -------------------------------------------------------------------------------------------------------

# Distinct experts of a batch whose tokens choose evenly.
sub distinct { my ($m, $t) = @_; return $m->{experts} * (1 - (1 - $m->{topk} / $m->{experts})**$t) }

sub streaming {
	my ($m, $t, $share) = @_;
	my $d = distinct($m, $t);
	return $m->{copy} * $d * (1 - $share) + ns_of($m->{gpu}, $d, $t * $m->{topk});
}

sub cpu_only { my ($m, $t) = @_; return ns_of($m->{cpu}, distinct($m, $t), $t * $m->{topk}) }

sub hybrid {
	my ($m, $t, $share) = @_;
	my $d = distinct($m, $t);
	my ($n, $ns) = choose($m, $share * $d, (1 - $share) * $d, $d, $t * $m->{topk} / $d);
	return $ns;
}

# The cached share from which on streaming is no slower than the CPU: below 0 where it never is slower, above 1 where
# it always is.
sub break_even {
	my ($m, $t) = @_;
	return 1 - (cpu_only($m, $t) - streaming($m, $t, 1)) / ($m->{copy} * distinct($m, $t));
}

# -- the input -----------------------------------------------------------------------------------------------------

sub read_input {
	my ($path) = @_;
	open my $file, '<', $path or die "breakeven: $path: $!\n";
	local $/;
	my $in = decode_json(<$file>);
	my @ffn = @{$in->{ffn} // []};
	die "breakeven: $path: \"ffn\": two objects or more are needed\n" if @ffn < 2;
	my ($first) = @ffn;
	for (@ffn) {
		die "breakeven: $path: \"ffn\": shapes or formats differ\n"
			unless $_->{format} eq $first->{format} && $_->{shape}{name} eq $first->{shape}{name};
	}
	my $s = $first->{shape};
	my %m = (experts => $s->{experts}, topk => $s->{topk}, name => $s->{name}, format => $first->{format});
	$m{cpu} = fit(map { [$_->{shape}{active_experts}, $_->{tokens} * $s->{topk}, 1e6 * $_->{ms}{best}] } @ffn);
	$m{bytes} = $first->{weight_gbs}{best} * $first->{ms}{best} * 1e6 / $s->{active_experts};
	$m{cpu_words} = "CPU measured: $first->{threads} threads, $first->{variant}" . ($in->{machine} ? ", $in->{machine}" : '');
	$m{date} = $in->{date} // '';
	if (my $times = $in->{cpu_times}) {
		$_ /= $times->{factor} for @{$m{cpu}}{qw(a b)};
		$m{cpu_words} .= "; shown: $times->{factor} times as fast, $times->{why}";
	}
	return $in->{device} ? of_device(\%m, $in->{device}, $path) : of_published(\%m, $in->{published}, $s, $path);
}

sub of_published {
	my ($m, $p, $shape, $path) = @_;
	for my $key (qw(read_gbs tflops link_gbs gpu link)) {
		die "breakeven: $path: \"published\" has no \"$key\"\n" unless $p->{$key};
	}
	$m->{gpu} = {a => $m->{bytes} / $p->{read_gbs}, b => 6 * $shape->{hidden} * $shape->{inter} / ($p->{tflops} * 1e3)};
	$m->{copy} = $m->{bytes} / $p->{link_gbs};
	$m->{gpu_words} = "GPU not measured: published rates of $p->{gpu}, $p->{link}";
	$m->{state} = 'MODELLED';
	return $m;
}

sub of_device {
	my ($m, $d, $path) = @_;
	die "breakeven: $path: \"device\" is of a simulated driver: its figures say nothing\n" if $d->{device}{simulated};
	my @rows = grep { $_->{format} eq $m->{format} } @{$d->{experts}};
	die "breakeven: $path: \"device\" has other experts than \"ffn\"\n" unless $d->{shape}{name} eq $m->{name} && @rows;
	$m->{gpu} = fit(map { [$_->{experts}, $_->{tokens} * $m->{topk}, 1e3 * $_->{us}{best}] } @rows);
	my @fills = @{$d->{fills} // []} ? map { $_->{gbs}{best} } @{$d->{fills}} : map { $_->{pinned_gbs}{best} } @{$d->{link}};
	$m->{copy} = $m->{bytes} / max(@fills);
	$m->{gpu_words} = "GPU and link measured: $d->{device}{name}, CUDA " . int($d->{device}{cuda} / 1000) . '.' .
		$d->{device}{cuda} % 1000 / 10;
	$m->{state} = 'MODELLED from measured rates';
	return $m;
}

# -- text ----------------------------------------------------------------------------------------------------------

sub columns { return map { 2**($_ / $steps) } 0 .. $steps * log($tokens_max) / log(2) }

sub print_lines {
	my ($m) = @_;
	printf "one copy %.1f us; GPU %.2f us an expert, %.3f us a pair; CPU %.1f us an expert, %.2f us a pair\n",
		map { $_ / 1e3 } $m->{copy}, @{$m->{gpu}}{qw(a b)}, @{$m->{cpu}}{qw(a b)};
	print "tokens  break-even  streaming us  CPU us  hybrid us (nothing cached; then half)\n";
	for (my $t = 1; $t <= $tokens_max; $t *= 2) {
		printf "%d %.6f %.3f %.3f %.3f %.3f %.3f\n", $t, break_even($m, $t), streaming($m, $t, 0) / 1e3,
			cpu_only($m, $t) / 1e3, hybrid($m, $t, 0) / 1e3, streaming($m, $t, 0.5) / 1e3, hybrid($m, $t, 0.5) / 1e3;
	}
}

# -- the picture ---------------------------------------------------------------------------------------------------

my ($left, $top, $wide, $high, $second) = (70, 118, 400, 320, 580);
my @gains = ([1.1, 'less than 1.1'], [1.5, '1.1 to 1.5'], [2, '1.5 to 2'], [9e9, '2 or more']);

sub xml { my ($text) = @_; $text =~ s/&/&amp;/g; $text =~ s/</&lt;/g; $text =~ s/>/&gt;/g; return $text }
sub x_of { my ($t, $from) = @_; return $from + $wide * log($t) / log($tokens_max) }
sub y_of { my ($share) = @_; return $top + $high * (1 - $share) }

sub text {
	my ($x, $y, $text, $class, $more) = @_;
	return sprintf "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\"%s>%s</text>\n", $x, $y, $class, $more // '', xml($text);
}

sub line {
	my ($x1, $y1, $x2, $y2, $class) = @_;
	return sprintf "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", $x1, $y1, $x2, $y2, $class;
}

sub path {
	my ($class, @points) = @_;
	return sprintf "<path class=\"%s\" d=\"%s\"/>\n", $class,
		join ' ', map { ($_ ? 'L' : 'M') . sprintf '%.1f %.1f', @{$points[$_]} } 0 .. $#points;
}

# The class of a point: which of the two alone is faster, and how much faster both together are.
sub cell {
	my ($m, $t, $share) = @_;
	my ($gpu, $cpu) = (streaming($m, $t, $share), cpu_only($m, $t));
	my $gain = min($gpu, $cpu) / hybrid($m, $t, $share);
	my ($step) = grep { $gain < $gains[$_][0] } 0 .. $#gains;
	return ($gpu <= $cpu ? 'g' : 'c') . $step;
}

sub map_panel {
	my ($m) = @_;
	my @t = columns();
	my $half = $wide / ($#t * 2);
	my $out = '';
	for my $row (0 .. $shares - 1) {
		my $share = ($row + 0.5) / $shares;
		my ($from, $class) = (0, '');
		for my $i (0 .. @t) {
			my $now = $i < @t ? cell($m, $t[$i], $share) : '';
			next if $now eq $class;
			if ($class) {
				my ($x1, $x2) = map { min(max(x_of($t[$_], $left) - $half, $left), $left + $wide) } $from, min($i, $#t);
				$x2 = $left + $wide if $i == @t;
				$out .= sprintf "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\"/>\n", $x1,
					y_of(($row + 1) / $shares), $x2 - $x1, $high / $shares + 0.3, $class;
			}
			($from, $class) = ($i, $now);
		}
	}
	my @even = grep { $_->[1] >= $top && $_->[1] <= $top + $high } map { [x_of($_, $left), y_of(break_even($m, $_))] } @t;
	$out .= path('even', @even) if @even > 1;
	$out .= text($left, $top - 14, 'Which is faster, by batch and cached share', 'head');
	$out .= axes($left);
	for my $share (0, 25, 50, 75, 100) {
		$out .= text($left - 8, y_of($share / 100) + 4, "$share %", 'end') .
			line($left - 4, y_of($share / 100), $left, y_of($share / 100), 'axis');
	}
	$out .= text(18, $top + $high / 2, 'experts of the layer in cache slots', 'mid',
		sprintf ' transform="rotate(-90 18 %.1f)"', $top + $high / 2);
	return $out . map_legend(@even > 1);
}

sub axes {
	my ($from) = @_;
	my $out = sprintf "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"frame\"/>\n", $from, $top, $wide, $high;
	for (my $t = 1; $t <= $tokens_max; $t *= 4) {
		$out .= text(x_of($t, $from), $top + $high + 18, $t, 'mid') .
			line(x_of($t, $from), $top + $high, x_of($t, $from), $top + $high + 4, 'axis');
	}
	return $out . text($from + $wide / 2, $top + $high + 38, 'tokens of a batch', 'mid');
}

sub map_legend {
	my ($has_even) = @_;
	my $y = $top + $high + 62;
	my $out = text($left, $y, 'times that the hybrid is faster than the better one alone:', 'small');
	for my $i (0 .. $#gains) {
		my $x = $left + 122 * $i;
		$out .= sprintf "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"14\" class=\"c%d\"/>\n", $x, $y + 10, $i;
		$out .= sprintf "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"14\" class=\"g%d\"/>\n", $x + 16, $y + 10, $i;
		$out .= text($x + 34, $y + 21, $gains[$i][1], 'small');
	}
	$out .= sprintf "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"14\" class=\"c2\"/>\n", $left, $y + 34;
	$out .= text($left + 20, $y + 45, 'the CPU alone is faster', 'small');
	$out .= sprintf "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"14\" class=\"g2\"/>\n", $left + 174, $y + 34;
	$out .= text($left + 194, $y + 45, 'streaming to the GPU is', 'small');
	return $out unless $has_even;
	return $out . line($left + 354, $y + 41, $left + 378, $y + 41, 'even') . text($left + 384, $y + 45, 'both alike', 'small');
}

sub time_panel {
	my ($m) = @_;
	my @t = columns();
	my $share = 0.25;
	my @lines = (['cpu', 'CPU only', map { cpu_only($m, $_) } @t],
		['gpu', 'GPU only, streaming what is not cached', map { streaming($m, $_, $share) } @t],
		['both', 'hybrid, at the cost model\'s split', map { hybrid($m, $_, $share) } @t]);
	my @all = map { log($_) / log(10) } map { my ($class, $name, @ns) = @$_; @ns } @lines;
	my ($low, $up) = (int(min(@all)), int(max(@all)) + 1);
	my $y = sub { $top + $high * ($up - log($_[0]) / log(10)) / ($up - $low) };
	my $out = text($second, $top - 14, sprintf('Time of a layer with %.0f %% of its experts cached', 100 * $share), 'head');
	$out .= axes($second);
	for my $power ($low .. $up) {
		my $at = $y->(10**$power);
		$out .= line($second, $at, $second + $wide, $at, 'grid') . text($second - 8, $at + 4, unit(10**$power), 'end');
	}
	my $row = 0;
	for (@lines) {
		my ($class, $name, @ns) = @$_;
		my $at = $top + $high + 62 + 18 * $row++;
		$out .= path($class, map { [x_of($t[$_], $second), $y->($ns[$_])] } 0 .. $#t);
		$out .= line($second, $at - 4, $second + 26, $at - 4, $class) . text($second + 34, $at, $name, 'small');
	}
	return $out;
}

sub unit {
	my ($ns) = @_;
	return $ns >= 1e9 ? $ns / 1e9 . ' s' : $ns >= 1e6 ? $ns / 1e6 . ' ms' : $ns >= 1e3 ? $ns / 1e3 . ' us' : "$ns ns";
}

my $style = <<'END';
text { font-family: sans-serif; font-size: 13px; fill: #1b1f24 }
.title { font-size: 18px; font-weight: bold } .head { font-weight: bold } .small { font-size: 12px }
.state { font-size: 14px; font-weight: bold; fill: #b3261e } .mid { text-anchor: middle } .end { text-anchor: end }
.page { fill: #ffffff } .frame { fill: none; stroke: #57606a } .axis { stroke: #57606a } .grid { stroke: #d0d7de }
.c0 { fill: #deebf7 } .c1 { fill: #9ecae1 } .c2 { fill: #4292c6 } .c3 { fill: #08519c }
.g0 { fill: #feedde } .g1 { fill: #fdbe85 } .g2 { fill: #fd8d3c } .g3 { fill: #b34700 }
path, line.cpu, line.gpu, line.both, line.even { fill: none; stroke-width: 2.5 }
.even { stroke: #000000; stroke-dasharray: 6 4 } .cpu { stroke: #1f6fb4 } .gpu { stroke: #d95f02; stroke-dasharray: 9 4 }
.both { stroke: #1a7f37; stroke-dasharray: 2 3 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .page { fill: #0d1117 } .frame, .axis { stroke: #8b949e } .grid { stroke: #30363d }
.state { fill: #ff7b72 } .even { stroke: #ffffff } .cpu { stroke: #58a6ff } .gpu { stroke: #ffa657 } .both { stroke: #56d364 }
.c0 { fill: #10263d } .c1 { fill: #1b4a75 } .c2 { fill: #2f77b5 } .c3 { fill: #79b8f0 }
.g0 { fill: #33200f } .g1 { fill: #6b3a10 } .g2 { fill: #b3601a } .g3 { fill: #f5a55b }
}
END

sub print_picture {
	my ($m) = @_;
	my ($w, $h) = ($second + $wide + 30, $top + $high + 136);
	print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 $w $h\" width=\"$w\" height=\"$h\" role=\"img\">\n";
	print "<!-- SPDX-License-Identifier: MIT -->\n";
	print '<title>', xml("Break-even of streaming, CPU and hybrid: $m->{name}, $m->{format}"), "</title>\n<style>\n$style</style>\n";
	print "<rect x=\"0\" y=\"0\" width=\"$w\" height=\"$h\" class=\"page\"/>\n";
	print text(20, 28, sprintf('One expert layer of %s in %s: %d experts, top %d, %.1f MB each', @$m{qw(name format experts topk)},
		$m->{bytes} / 1e6), 'title');
	print text(20, 50, "$m->{state}: every time here is computed, none was measured", 'state');
	print text(20, 68, "$m->{cpu_words}" . ($m->{date} ? ", $m->{date}" : ''), 'small');
	print text(20, 84, $m->{gpu_words}, 'small');
	print map_panel($m), time_panel($m), "</svg>\n";
}

# ------------------------------------------------------------------------------------------------------------------

my $what = @ARGV && $ARGV[0] =~ /^--/ ? shift : '';
if ($what eq '--choose' && @ARGV == 5) {
	my %m = (copy => $ARGV[0], gpu => {a => $ARGV[1], b => $ARGV[2]}, cpu => {a => $ARGV[3], b => $ARGV[4]});
	while (<STDIN>) {
		printf "%d %.9g\n", choose(\%m, split);
	}
} elsif (($what eq '' || $what eq '--lines') && @ARGV == 1) {
	my $m = read_input($ARGV[0]);
	$what ? print_lines($m) : print_picture($m);
} else {
	open my $self, '<', $0 or die;
	my @words = grep { /^#/ } <$self>;
	print STDERR map { s/^# ?//r } @words[3 .. 15];
	exit 2;
}
