# SPDX-License-Identifier: MIT
#
# PromText - reads Prometheus' text format 0.0.4 and says what is wrong in it, as `promtool check metrics` would: names,
# types before samples, each family in one piece, no series twice, values, counters that end in _total and others that do
# not, base units, help for everything.
package PromText;
use strict;
use warnings;
use Exporter qw(import);

our @EXPORT_OK = qw(parse);

my $metric = qr/[a-zA-Z_:][a-zA-Z0-9_:]*/;
my $label = qr/[a-zA-Z_][a-zA-Z0-9_]*/;
my $value = qr/[+-]?(?:Inf|NaN|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)/;

# The text of {...}: the labels in order, or undef.
sub labels_of {
	my ($text) = @_;
	my (%seen, @labels);

	while (length $text) {
		$text =~ s/^($label)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)// or return undef;
		my ($name, $text_value) = ($1, $2);
		return undef if $seen{$name}++;
		push @labels, [$name, $text_value =~ s/\\(.)/$1 eq 'n' ? "\n" : $1/ger];
	}
	return \@labels;
}

sub comment {
	my ($all, $wrong, $line, $at) = @_;

	if ($line =~ /^# HELP ($metric) (.*)$/) {
		push @$wrong, "line $at: second HELP of $1" if defined $all->{$1}{help};
		push @$wrong, "line $at: HELP of $1 comes after its samples" if $all->{$1}{samples};
		push @$wrong, "line $at: HELP of $1 has a wrong escape" if $2 =~ /^(?:[^\\]|\\[\\n])*?\\(?![\\n])/;
		push @$wrong, "line $at: HELP of $1 is empty" unless length $2;
		$all->{$1}{help} = $2;
		return $1;
	}
	if ($line =~ /^# TYPE ($metric) (counter|gauge|histogram|summary|untyped)$/) {
		push @$wrong, "line $at: second TYPE of $1" if defined $all->{$1}{type};
		push @$wrong, "line $at: TYPE of $1 comes after its samples" if $all->{$1}{samples};
		$all->{$1}{type} = $2;
		return $1;
	}
	push @$wrong, "line $at: neither HELP nor TYPE: $line" if $line =~ /^# (?:HELP|TYPE)\b/;
	return undef;
}

sub sample {
	my ($all, $wrong, $line, $at) = @_;
	my ($name, $in, $number) = $line =~ /^($metric)(?:\{(.*)\})? +($value)(?: +-?\d+)?$/;

	if (!defined $name) {
		push @$wrong, "line $at: no sample: $line";
		return undef;
	}
	my $labels = labels_of($in // '');
	push @$wrong, "line $at: labels of $name: {$in}" unless $labels;
	my $key = join "\0", sort map { "$_->[0]=$_->[1]" } @{$labels // []};
	push @$wrong, "line $at: a series of $name twice: $line" if $all->{$name}{series}{$key}++;
	push @$wrong, "line $at: $name has no TYPE" unless defined $all->{$name}{type};
	push @$wrong, "line $at: counter $name is negative" if ($all->{$name}{type} // '') eq 'counter' && $number =~ /^-/;
	push @{$all->{$name}{samples}}, {labels => {map { @$_ } @{$labels // []}}, value => $number};
	return $name;
}

sub lint {
	my ($all, $wrong) = @_;

	for my $name (sort keys %$all) {
		my $type = $all->{$name}{type} // next;
		push @$wrong, "$name: no HELP" unless defined $all->{$name}{help};
		push @$wrong, "$name: a counter that does not end in _total" if $type eq 'counter' && $name !~ /_total$/;
		push @$wrong, "$name: ends in _total and is no counter" if $type ne 'counter' && $name =~ /_total$/;
		push @$wrong, "$name: not a base unit"
			if $name =~ /_(?:ns|us|ms|nanoseconds|microseconds|milliseconds|minutes|hours|kb|mb|gb|kilobytes|megabytes|bits|percent)(?:_|$)/;
		push @$wrong, "$name: capital letters or colons" if $name =~ /[A-Z:]/;
	}
}

# ({NAME => {type, help, samples => [{labels => {}, value}]}}, what is wrong).
sub parse {
	my ($text) = @_;
	my (%all, %ended, @wrong, $now);
	my $at = 0;

	push @wrong, 'the last line does not end' if length $text && $text !~ /\n\z/;
	for my $line (split /\n/, $text) {
		$at++;
		next if $line =~ /^\s*$/;
		my $name = $line =~ /^#/ ? comment(\%all, \@wrong, $line, $at) : sample(\%all, \@wrong, $line, $at);
		next if !defined $name;
		if (defined $now && $now ne $name) {
			$ended{$now} = 1;
		}
		push @wrong, "line $at: $name is not in one piece" if $ended{$name};
		$now = $name;
	}
	lint(\%all, \@wrong);
	return (\%all, @wrong);
}

1;
