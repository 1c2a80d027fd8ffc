#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# damage - a copy of a safetensors file with one thing wrong.
#
#   damage.pl WHAT FROM TO
#
# truncated    the last 4096 bytes are missing        overlap      an expert's tensor begins inside the one before it
# range        a tensor ends beyond the file          header       the header's length is beyond all reason
# dtype        an expert's tensor has an unknown type shape        an expert's tensor has another shape
# json         the header is not JSON                 extra        bytes at the end belong to no tensor
use strict;
use warnings;
use JSON::PP;

my ($what, $from, $to) = @ARGV;
die "usage: $0 WHAT FROM TO\n" unless defined $to;

open(my $in, '<:raw', $from) or die "$from: $!\n";
my $bytes = do { local $/; <$in> };
my $length = unpack('Q<', $bytes);
my $header = substr($bytes, 8, $length);
my $data = substr($bytes, 8 + $length);

# The second expert tensor in the order of the file: there is one before it.
my $table = decode_json($header);
delete $table->{__metadata__};
my @order = sort { $table->{$a}{data_offsets}[0] <=> $table->{$b}{data_offsets}[0] } keys %$table;
my $name = (grep { /experts\./ && $table->{$_}{data_offsets}[0] > 0 } @order)[1];
my $tensor = $table->{$name};

my %change = (
	truncated => sub { $data = substr($data, 0, -4096) },
	overlap => sub { $_ -= 64 for @{$tensor->{data_offsets}} },
	range => sub { $_ += length $data for @{$tensor->{data_offsets}} },
	header => sub { $length = 1 << 40 },
	dtype => sub { $tensor->{dtype} = 'F5_ODD' },
	shape => sub { @{$tensor->{shape}} = ($tensor->{shape}[0] / 2, $tensor->{shape}[1] * 2) },
	json => sub { $header =~ s/"dtype"/"dtype/ },
	extra => sub { $data .= "\0" x 64 },
);
die "$0: unknown damage $what\n" unless $change{$what};
$change{$what}->();

if ($what =~ /^(?:overlap|range|dtype|shape)$/) {
	# Numbers must stay numbers.
	$tensor->{$_} = [map { $_ + 0 } @{$tensor->{$_}}] for qw(shape data_offsets);
	$header = JSON::PP->new->canonical->encode($table);
	$header .= ' ' x (-length($header) % 8);
	$length = length $header;
}

open(my $out, '>:raw', $to) or die "$to: $!\n";
print $out pack('Q<', $length), $header, $data;
close($out) or die "$to: $!\n";
print "$name\n";
