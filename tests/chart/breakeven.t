#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# breakeven - the chart's script puts break-evens where they are for rates that can be worked out by hand, writes XML, says
# in the picture what was not measured, and refuses what says nothing. The committed picture is what it makes of its input.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/../style";
use Style;
use File::Temp;
use JSON::PP;

my $script = 'scripts/breakeven.pl';
my $dir = File::Temp->newdir;

# One millionth of a second for each byte: an expert has a thousand bytes.
my $hidden = 10;
my $inter = 10;
my $bytes = 1000;

# Samples of a CPU that takes so many ns for an expert and for a pair.
sub ffn {
	my ($experts, $topk, $a, $b, @tokens) = @_;
	return map {
		my $ns = $a * $experts + $b * $_ * $topk;
		{format => 'bf16', variant => 'test', threads => 3, tokens => $_, ms => {best => $ns / 1e6},
			weight_gbs => {best => $bytes * $experts / $ns},
			shape => {name => 'made up', hidden => $hidden, inter => $inter, experts => $experts, topk => $topk,
				active_experts => $experts}};
	} @tokens;
}

# A GPU that takes so many ns for an expert and for a pair, and for a copy.
sub published {
	my ($copy, $a, $b) = @_;
	return {gpu => 'a GPU & more', link => 'a <link>', read_gbs => $bytes / $a, link_gbs => $bytes / $copy,
		tflops => 6 * $hidden * $inter / ($b * 1e3)};
}

my $made = 0;
sub input {
	my (%in) = @_;
	my $path = "$dir/" . $made++ . '.json';
	open my $file, '>', $path or die;
	print $file encode_json(\%in);
	close $file;
	return $path;
}

sub output { my $text = `perl $script @_ 2>&1`; return ($text, $? >> 8) }

# tokens => [break-even, streaming, CPU, hybrid, ...]
sub table {
	my ($text, $status) = output('--lines', @_);
	return () if $status;
	return map { my ($t, @row) = split; $t => \@row } grep { /^\d+ / } split /\n/, $text;
}

sub near { my ($found, $expected) = @_; return defined $found && abs($found - $expected) < 1e-4 * (1 + abs $expected) }

# All experts are chosen by each token; without arithmetic the break-even is where as many copies as the CPU has more of
# reading: CPU 500 ns, GPU 100 ns, a copy 1000 ns: streaming 60 of 100 lasts as long as the CPU.
my %rows = table(input(ffn => [ffn(8, 8, 500, 0, 1, 64)], published => published(1000, 100, 1e-9)));
my @wrong = grep { !near($rows{$_}[0], 0.6) } keys %rows;
ok(keys %rows == 13 && !@wrong, 'reading alone: 60 % cached, whatever the batch', map { "$_: $rows{$_}[0]" } @wrong);

# With arithmetic: nothing cached, 37 pairs an expert: 1000 + 100 + 37 b = 500 + 37 * (b + 600 / 37).
%rows = table(input(ffn => [ffn(4, 4, 500, 10 + 600 / 32, 1, 256)], published => published(1000, 100, 10)));
ok(near($rows{32}[0], 0), "arithmetic: 32 tokens, nothing cached ($rows{32}[0])");
ok($rows{16}[0] > 0.01 && $rows{64}[0] < -0.01, 'before it the CPU is the faster, behind it streaming');
ok(near($rows{32}[1], $rows{32}[2]) && near($rows{32}[1], 4 * (1100 + 320) / 1e3), 'both last as long there', "@{$rows{32}}");

# The hybrid is never slower than either, and faster where both have work: 4 experts, 2 copied.
ok(!(grep { $rows{$_}[3] > 1e-3 + $rows{$_}[1] || $rows{$_}[3] > 1e-3 + $rows{$_}[2] } keys %rows), 'the hybrid is never slower');
ok(near($rows{32}[3], 2 * 1420 / 1e3), 'and takes half as long where both alone last alike', "@{$rows{32}}");

# Few of many experts: a token chooses 2 of 4, two tokens 3 in the mean.
%rows = table(input(ffn => [map { $_->{shape}{experts} = 4; $_ } ffn(2, 2, 500, 0, 1, 2)],
	published => published(1000, 100, 1e-9)));
ok(near($rows{1}[2], 1) && near($rows{2}[2], 1.5), 'the distinct experts of a batch', "$rows{1}[2] $rows{2}[2]");

# What the fit makes of rates that are not exactly a line, and of the GPU's own figures.
my @ffn = ffn(8, 8, 500, 3, 1, 4, 64);
my $gpu = {device => {name => 'GPU of the test', simulated => JSON::PP::false, cuda => 13010},
	shape => {name => 'made up'},
	experts => [map { {format => 'bf16', experts => 8, tokens => $_, us => {best => (8 * 100 + 8 * $_ * 7) / 1e3}} } 1, 512],
	fills => [{gbs => {best => 0.5}}, {gbs => {best => 1}}]};
my ($text, $status) = output('--lines', input(ffn => \@ffn, device => $gpu));
ok($text =~ /^one copy 1\.0 us; GPU 0\.10 us an expert, 0\.007 us a pair; CPU 0\.5 us an expert, 0\.00 us a pair/,
	'the rates of a device', $text);

# -- the picture ------------------------------------------------------------------------------------------------------

# Well-formed: elements nest and end, attributes are quoted, & and < stand for nothing else.
sub xml_error {
	my ($xml) = @_;
	my (@open, $seen);
	$xml =~ s/<!--(?:(?!--).)*-->//gs;
	while ($xml =~ m{\G(?:<(/?)(\w+)((?:\s+[\w:-]+="[^"<&]*")*)\s*(/?)>|([^<]+))}gc) {
		my ($end, $name, $text, $alone) = ($1, $2, $5, $4);
		if (defined $text) {
			return "a bare & in '$text'" if $text =~ /&(?!amp;|lt;|gt;)/;
			return "text outside: $text" if !@open && $text =~ /\S/;
			next;
		}
		return "a second root <$name>" if !@open && $seen++;
		return "</$name> ends <" . ($open[-1] // '') . '>' if $end && (!@open || pop(@open) ne $name);
		push @open, $name unless $end || $alone;
	}
	return 'at ' . substr($xml, pos($xml) // 0, 60) if (pos($xml) // 0) < length $xml;
	return @open ? "<$open[-1]> does not end" : undef;
}

for (['<a><b></a></b>', 'nesting'], ['<a x=1/>', 'quotes'], ['<a>&</a>', 'entities'], ['<a>', 'ends'], ['<a/><b/>', 'roots']) {
	ok(defined xml_error($_->[0]), "the check of XML sees wrong $_->[1]");
}
my $published = input(date => 'today', machine => 'a & b', ffn => \@ffn, published => published(1000, 100, 10));
my ($svg) = output($published);
ok(!defined xml_error($svg), 'the picture is XML', xml_error($svg) // ());
ok($svg =~ /MODELLED: every time here is computed/ && $svg =~ /CPU measured: 3 threads, test, a &amp; b, today/ &&
	$svg =~ /GPU not measured: published rates of a GPU &amp; more, a &lt;link&gt;/, 'it says what was not measured');
ok($svg =~ />tokens of a batch</ && $svg =~ />experts of the layer in cache slots</ && $svg =~ />\d+ us</, 'its axes have names and units');
ok($svg =~ />CPU only</ && $svg =~ />hybrid, at the cost model's split</ && $svg =~ /prefers-color-scheme: dark/, 'a legend, and colours for the dark');
ok((() = $svg =~ /class="even"/g) == 2, 'the break-even is drawn, and in the legend');
($svg) = output(input(ffn => \@ffn, published => published(1000, 100, 10), cpu_times => {factor => 4, why => 'if so'}));
ok($svg =~ /CPU measured: 3 threads, test; shown: 4 times as fast, if so</, 'a CPU that is assumed is said to be');
($svg) = output(input(ffn => \@ffn, device => $gpu));
ok(!defined xml_error($svg) && $svg =~ /GPU and link measured: GPU of the test, CUDA 13\.1</, 'with a device it names it');

# -- what is refused --------------------------------------------------------------------------------------------------

for (['a simulated driver', qr/simulated/, ffn => \@ffn, device => {%$gpu, device => {simulated => JSON::PP::true}}],
	['one sample', qr/two objects or more/, ffn => [$ffn[0]], published => published(1, 1, 1)],
	['the same tokens twice', qr/different tokens/, ffn => [@ffn[0, 0]], published => published(1, 1, 1)],
	['two shapes', qr/differ/, ffn => [$ffn[0], {%{$ffn[1]}, format => 'int8'}], published => published(1, 1, 1)],
	['no source', qr/no "link"/, ffn => \@ffn, published => {%{published(1, 1, 1)}, link => ''}]) {
	my ($name, $words, @in) = @$_;
	my ($said, $code) = output(input(@in));
	ok($code != 0 && $said =~ $words, "$name: refused", $said);
}

# -- what is committed -----------------------------------------------------------------------------------------------

for my $picture (qw(docs/breakeven docs/breakeven-server)) {
	my ($now) = output("$picture.json");
	ok($now eq join('', lines("$picture.svg")), "$picture.svg is made of $picture.json: make breakeven");
	ok(!defined xml_error($now), 'and is XML');
}
done();
