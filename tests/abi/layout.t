#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# layout - the six ABI headers mean the same bytes to C and C++, with 64 and 32 bits, today and in the next version.
#
#   tests/abi/layout.t            TAP: all four compilers against tests/abi/golden.txt
#   tests/abi/layout.t --update   writes golden.txt anew; what changes in it is a change of the ABI
#
# The headers themselves say what there is to list: each struct, field, enumerator and number that they define becomes
# a line. The compiler answers through assembly text, so neither a 32-bit C library nor a 32-bit kernel is needed.
# A line of a field is: offset, size, name; reserved bytes are marked, and bytes without a name are an error.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Temp qw(tempdir);

my $root = abs_path(dirname(__FILE__) . '/../..');
my $golden = "$root/tests/abi/golden.txt";
my @headers = qw(moe_format.h moe_ring.h moe_manifest.h moe_proto.h moe_kmod.h moe_trace.h);
my $dir = tempdir(CLEANUP => 1);

# -- what the headers define --------------------------------------------------------------------------------------

# Items in order: [title], [label, C expression], [text].
my @items;

sub slurp {
	my ($path) = @_;
	open(my $in, '<', $path) or die "$path: $!\n";
	local $/;
	return scalar <$in>;
}

# Members between braces, tokens taken from @$tokens; returns a list of {name, kind, members}.
sub parse_members {
	my ($tokens) = @_;
	my @members;

	while (1) {
		my $token = shift @$tokens;
		die "no closing brace\n" unless defined $token;
		return \@members if $token eq '}';
		if ($token =~ /^(struct|union)$/ && $tokens->[0] eq '{') {
			shift @$tokens;
			my $inner = parse_members($tokens);
			my $name = $tokens->[0] eq ';' ? undef : shift @$tokens;
			push @members, {name => $name, kind => $token, members => $inner};
		} else {
			my @words = ($token);
			push @words, shift @$tokens while @$tokens && $tokens->[0] !~ /^[;\[]$/;
			push @members, {name => $words[-1], kind => 'field'};
		}
		while (@$tokens) {
			last if shift @$tokens eq ';';
		}
	}
}

sub list_members {
	my ($type, $prefix, $members) = @_;

	for my $m (@$members) {
		my $path = defined $m->{name} ? $prefix . $m->{name} : undef;
		push @items, {type => $type, path => $path} if defined $path;
		list_members($type, defined $path ? "$path." : $prefix, $m->{members}) if $m->{members};
	}
}

# Byte ranges that have a name: the leaves of the tree, by path.
sub leaves {
	my ($prefix, $members) = @_;
	return map {
		my $path = defined $_->{name} ? $prefix . $_->{name} : undef;
		$_->{members} ? leaves(defined $path ? "$path." : $prefix, $_->{members}) : ($path);
	} @$members;
}

# Every way through the unions: lists of leaves that together must cover the struct.
sub covers {
	my ($prefix, $members, $union) = @_;
	my @ways = $union ? () : ([]);

	for my $m (@$members) {
		my $inner = $prefix . (defined $m->{name} ? $m->{name} . ($m->{members} ? '.' : '') : '');
		my @each = $m->{members} ? covers($inner, $m->{members}, $m->{kind} eq 'union') : ([$inner]);
		@ways = $union ? (@ways, @each) : map { my $way = $_; map { [@$way, @$_] } @each } @ways;
	}
	return @ways;
}

my %members_of;
for my $header (@headers) {
	my $text = slurp("$root/lib/uapi/$header");
	$text =~ s{/\*.*?\*/}{}gs;
	push @items, {title => $header};
	while ($text =~ /^#define (MOE_\w+)[ \t]+(\S.*?)[ \t]*$/mg) {
		my ($name, $value) = ($1, $2);
		push @items, $value =~ /^"/ ? {text => "define $name $value"} : {define => $name};
	}
	$text =~ s/^#.*?[^\\]$//mgs;
	while ($text =~ /\b(enum|struct) (\w+)\s*\{/g) {
		my ($kind, $name) = ($1, $2);
		next if $name eq 'moe_format_spec'; # the compiler's own table: nobody shares its bytes
		my $rest = substr($text, pos $text);
		if ($kind eq 'enum') {
			my ($body) = $rest =~ /^(.*?)\}/s;
			push @items, map { {enumerator => $_, enum => $name} } $body =~ /\b(MOE_\w+)\s*(?:=|,|$)/gm;
			next;
		}
		my @tokens = $rest =~ /\w+|[{}\[\];,*()]/g;
		my $members = parse_members(\@tokens);
		$members_of{$name} = $members;
		push @items, {size => $name};
		list_members($name, '', $members);
	}
}

# -- what a compiler makes of it ----------------------------------------------------------------------------------

sub program {
	my $source = join('', map { qq(#include "$_"\n) } @headers);
	my $number = 0;

	$source .= qq(#ifdef __cplusplus\nextern "C" void layout(void);\n#else\nvoid layout(void);\n#endif\n);
	$source .= "#define TELL(n, value) __asm__ volatile(\"\\n@@ \" n \" %c0 %c1\" : : "
		. "\"i\"((int)((unsigned long long)(value) >> 32)), \"i\"((int)((unsigned long long)(value) & 0xffffffffu)))\n";
	$source .= "void layout(void)\n{\n";
	for my $item (@items) {
		my @values;
		@values = ("sizeof(struct $item->{size})") if $item->{size};
		@values = ($item->{define}) if $item->{define};
		@values = ($item->{enumerator}) if $item->{enumerator};
		@values = ("__builtin_offsetof(struct $item->{type}, $item->{path})",
			   "sizeof(((struct $item->{type} *)0)->$item->{path})") if $item->{path};
		$item->{ids} = [map { my $id = $number++; $source .= qq(\tTELL("$id", $_);\n); $id } @values];
	}
	return "$source}\n";
}

# Returns the layout's lines, or dies with the compiler's words.
sub ask {
	my (@compiler) = @_;
	my $source = $compiler[0] =~ /\+\+/ ? "$dir/layout.cc" : "$dir/layout.c";

	open(my $out, '>', $source) or die "$source: $!\n";
	print $out program();
	close($out);
	my $command = join(' ', @compiler, "-I'$root/lib/uapi'", "-S -o $dir/layout.s $source 2>&1");
	my $words = `$command`;
	die "$command\n$words" if $?;

	my %value;
	my $text = slurp("$dir/layout.s");
	while ($text =~ /@@ (\d+) (-?\d+) (-?\d+)/g) {
		$value{$1} = (($2 & 0xffffffff) << 32) | ($3 & 0xffffffff);
	}
	return render(\%value);
}

sub render {
	my ($value) = @_;
	my ($lines, %place) = ('');

	for my $item (@items) {
		my @v = map { $value->{$_} // die "the assembly lacks value $_\n" } @{$item->{ids}};
		if ($item->{title}) {
			$lines .= "# $item->{title}\n";
		} elsif ($item->{text}) {
			$lines .= "$item->{text}\n";
		} elsif ($item->{define}) {
			$lines .= sprintf("define %s 0x%x\n", $item->{define}, $v[0]);
		} elsif ($item->{enumerator}) {
			$lines .= "enum $item->{enum} $item->{enumerator} $v[0]\n";
		} elsif ($item->{size}) {
			$lines .= "struct $item->{size} $v[0]\n";
			$place{$item->{size}}{''} = [0, $v[0]];
		} else {
			my $mark = $item->{path} =~ /(?:^|\.)(?:reserved|pad)\d*$/ ? ' (reserved, zero)' : '';
			$lines .= sprintf("  %4d %4d %s%s\n", @v, $item->{path}, $mark);
			$place{$item->{type}}{$item->{path}} = \@v;
		}
	}
	return ($lines, \%place);
}

# Bytes of a struct that no field names, as texts.
sub holes {
	my ($place) = @_;
	my %found;

	for my $type (sort keys %members_of) {
		my $size = $place->{$type}{''}[1];
		for my $way (covers('', $members_of{$type}, 0)) {
			my $at = 0;
			for my $range (map { $place->{$type}{$_} } @$way) {
				$found{"struct $type: bytes $at to $range->[0] have no name"} = 1 if $range->[0] != $at;
				$at = $range->[0] + $range->[1];
			}
			$found{"struct $type: bytes $at to $size have no name (after $way->[-1])"} = 1 if $at != $size;
		}
	}
	return sort keys %found;
}

# -- main ---------------------------------------------------------------------------------------------------------

my $cc = $ENV{CC} || 'cc';
my $cxx = $ENV{CXX} || 'c++';
# A 32-bit compilation does not look where Debian puts the 64-bit <asm/types.h>; the kernel's headers are the same.
chomp(my $triplet = `$cc -print-multiarch 2>/dev/null` || 'x86_64-linux-gnu');
my $m32 = "-m32 -idirafter /usr/include/$triplet";
my @strict = qw(-Wall -Wextra -Werror);
my @compilers = (
	['C', $cc, '-std=c11', @strict],
	['C++', $cxx, '-std=c++11', @strict],
	['C -m32', $cc, '-std=c11', $m32, @strict],
	['C++ -m32', $cxx, '-std=c++11', $m32, @strict],
);

if (@ARGV && $ARGV[0] eq '--update') {
	my ($name, @command) = @{$compilers[0]};
	my ($lines) = ask(@command);
	open(my $out, '>', $golden) or die "$golden: $!\n";
	print $out $lines;
	close($out) or die "$golden: $!\n";
	exit 0;
}

my $count = 0;
my $failed = 0;
sub ok {
	my ($good, $name, @diag) = @_;
	print $good ? '' : 'not ', 'ok ', ++$count, " - $name\n";
	return 1 if $good;
	$failed++;
	print "# $_\n" for @diag;
	return 0;
}

my $expected = slurp($golden);
for my $compiler (@compilers) {
	my ($name, @command) = @$compiler;
	my ($lines, $place) = eval { ask(@command) };
	if (!ok(defined $lines, "$name compiles the headers without a warning", split /\n/, $@)) {
		next;
	}
	my @found = split /\n/, $lines;
	my %old = map { $_ => 1 } split /\n/, $expected;
	my %new = map { $_ => 1 } @found;
	ok($lines eq $expected, "$name has the layout of golden.txt",
	   (map { "golden.txt only: $_" } grep { !$new{$_} } split /\n/, $expected),
	   (map { "headers only:    $_" } grep { !$old{$_} } @found));
	my @holes = holes($place);
	ok(!@holes, "$name: each byte of each struct belongs to a field", @holes);
}
print "1..$count\n";
exit($failed ? 1 : 0);
