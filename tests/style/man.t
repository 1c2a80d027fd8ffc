#!/usr/bin/perl
# SPDX-License-Identifier: MIT
#
# man - the manual pages say what the code says: options and defaults, functions, fields, numbers with a name, arrows.
#
# The pages are mdoc, read here line by line; the programs are asked for their --help, the headers are read as text.
use strict;
use warnings;
use FindBin;
use JSON::PP;
use lib $FindBin::Bin;
use Style;

my $build = $ENV{MOE_BUILD} // 'build';
my %programs = (
	'moe-expertd' => ['docs/man/moe-expertd.8', 'daemon/moe-expertd'],
	'moectl' => ['docs/man/moectl.1', 'tools/moectl'],
	'moe-worker' => ['docs/man/moe-worker.1', 'tools/moe-worker'],
	'moe-bench' => ['docs/man/moe-bench.1', 'tools/moe-bench'],
);
my %headers = (
	'lib/include/moe-error.h' => 'docs/man/moe-expert.3',
	'lib/include/moe-expert.h' => 'docs/man/moe-expert.3',
	'lib/uapi/moe_ring.h' => 'docs/man/moe-ring.7',
	'lib/uapi/moe_proto.h' => 'docs/man/moe-proto.7',
	'lib/uapi/moe_manifest.h' => 'docs/man/moe-manifest.7',
);

sub text { join '', lines($_[0]) }

# What is only in the first list, and only in the second.
sub differences {
	my ($a, $a_name, $b, $b_name) = @_;
	my %a = map { $_ => 1 } @$a;
	my %b = map { $_ => 1 } @$b;
	return ((map { "$_: in $a_name, not in $b_name" } grep { !$b{$_} } sort keys %a),
		(map { "$_: in $b_name, not in $a_name" } grep { !$a{$_} } sort keys %b));
}

# -- programs -----------------------------------------------------------------------------------------------------

sub options_in { $_[0] =~ /(?<![\w-])(--[a-z][a-z-]*|-[a-zA-Z](?![\w-]))/g }
sub default_in { $_[0] =~ /\((default:? .*?)\)/s ? $1 =~ s/\s+/ /gr : undef }

# Of the option that begins each entry: its default.
sub help_defaults {
	my ($help) = @_;
	my (%defaults, $option, %entry);

	for (split /\n/, $help) {
		$option = /^  (?:-\w, )?(--[a-z-]+)/ ? $1 : undef if /^ {0,2}\S/ || /^$/;
		$entry{$option} .= "$_\n" if defined $option;
	}
	for (keys %entry) {
		my $default = default_in($entry{$_});
		$defaults{$_} = $default if defined $default;
	}
	return %defaults;
}

# The options of .It lines, and what is said below each.
sub page_items {
	my ($page) = @_;
	my (%items, @now);

	for (lines($page)) {
		if (/^\.It\b/) {
			@now = map { "-$_" } /\bFl (\S+)/g;
			$items{$_} = '' for @now;
		} elsif (/^\.(?:El|Sh|Ss)\b/) {
			@now = ();
		} else {
			my $line = s/\\-/-/gr;
			$items{$_} .= $line for @now;
		}
	}
	return %items;
}

sub check_program {
	my ($name, $page, $program) = @_;
	my $help = -x $program ? `'$program' --help` : undef;
	if (!defined $help) {
		ok(1, "# SKIP $program is not built");
		return;
	}
	ok($? == 0 && length $help, "$name prints its help");
	my %items = page_items($page);
	my @wrong = differences([options_in($help)], '--help', [keys %items], $page);
	ok(!@wrong, "$page has the options of $name", @wrong);

	my %from_help = help_defaults($help);
	my %from_page = map { my $d = default_in($items{$_}); defined $d ? ($_ => $d) : () } grep { /^--/ } keys %items;
	@wrong = differences([map { "$_ ($from_help{$_})" } keys %from_help], '--help',
			     [map { "$_ ($from_page{$_})" } keys %from_page], $page);
	ok(%from_help && !@wrong, "$page has the defaults of $name", @wrong);

	my @verbs = $help =~ /^  ([a-z]+)(?= )/mg;
	my $text = text($page);
	@wrong = map { "$_: in --help, not in $page" } grep { $text !~ /\bCm $_\b/ } @verbs;
	push @wrong, map { "$_: in $page, not in --help" }
		grep { my $verb = $_; !grep { $_ eq $verb } @verbs } $text =~ /^\.It Cm ([a-z]+)/mg;
	ok(!@wrong, "$page has the verbs of $name", @wrong);
}

# -- settings -----------------------------------------------------------------------------------------------------

# What the page says of each key of each section: range, default, when it changes.
sub check_settings {
	my ($page, $program) = @_;
	my $document = -x $program ? `'$program' config --config /dev/null --json` : undef;
	if (!defined $document) {
		ok(1, "# SKIP $program is not built");
		return;
	}
	my @settings = @{decode_json($document)->{settings}};
	my (%said, $section, $key, @wrong);

	for (lines($page)) {
		$section = /^\.Sh (\S+) SECTION$/ ? $1 : undef if /^\.Sh/;
		$key = /^\.It Va (\w+) Ns =$/ ? "$section $1" : undef if /^\.(?:It|El|Sh)/;
		$said{$key} .= $_ if defined $key;
	}
	@wrong = differences([map { uc($_->{section}) . " $_->{key}" } @settings], 'the table', [keys %said], $page);
	ok(@settings > 10 && !@wrong, "$page has the " . @settings . ' keys of the table', @wrong);

	for my $s (@settings) {
		my $text = ($said{uc($s->{section}) . " $s->{key}"} // '') =~ s/\s+/ /gr;
		my $default = default_in($text) // '';
		my $when = $s->{reload} ? 'Changes at a reload' : 'Changes at a restart';
		push @wrong, "$s->{key}: the default is $s->{default}, not ($default)"
			unless $default eq "default $s->{default}" || $default eq "default: $s->{default}";
		push @wrong, "$s->{key}: not a word of: $s->{range}" unless index($text, $s->{range}) >= 0;
		push @wrong, "$s->{key}: $when is not said" unless index($text, $when) >= 0;
		push @wrong, "$s->{key}: the unit, $s->{unit}, is not said"
			if defined $s->{unit} && $text !~ /\b$s->{unit}\b/i;
	}
	ok(!@wrong, "$page has their ranges, defaults and units, and when they change", @wrong);
}

# -- headers ------------------------------------------------------------------------------------------------------

sub code_of { text($_[0]) =~ s{/\*.*?\*/}{}sgr }

# Spelling does not count: "struct moe_client ** ret" is "struct moe_client **ret".
sub squash { $_[0] =~ s/\s+/ /gr =~ s/ ?(\*+) ?/ $1/gr =~ s/^ | $//gr }

sub check_functions {
	my ($header, $page) = @_;
	my @map = text('lib/libmoe-expert.map') =~ /^\t(moe_\w+);/mg;
	my (@declared, @described);

	my $code = code_of($header) =~ s/^#.*//mgr;
	while ($code =~ /^((?:[a-z]\w*[ *]+)+)(moe_\w+)\(((?:[^;{}])*)\);/mg) {
		my ($type, $name, $arguments) = ($1, $2, $3);
		# Commas inside of a function pointer's own list do not part arguments.
		my @arguments = split /,(?![^()]*\))/, $arguments;
		push @declared, squash($type) . " $name(" . join(', ', map { squash($_) } @arguments) . ')';
	}
	my $text = text($page);
	while ($text =~ /^\.Ft (.*)\n\.Fo (\S+)\n((?:\.Fa .*\n)*)\.Fc/mg) {
		my ($type, $name, $arguments) = ($1, $2, $3);
		push @described, squash($type) . " $name(" . join(', ', map { squash($_) } $arguments =~ /"(.*)"/g) . ')';
	}
	ok(@map > 10, 'the library has functions (' . @map . ')');
	my @wrong = differences([map { /(\w+)\(/ } @declared], $header, \@map, 'lib/libmoe-expert.map');
	ok(!@wrong, "$header declares what the library exports", @wrong);
	@wrong = differences(\@declared, $header, \@described, $page);
	ok(!@wrong, "$page has each function as $header declares it", @wrong);
	@wrong = grep { $text !~ /^\.Fn $_\b/m } @map;
	ok(!@wrong, "$page describes each function", @wrong);
}

# Enumerators, flags, and the fields of structs; not what is only room, and not the number of enumerators.
sub names_of {
	my ($header) = @_;
	my $code = code_of($header);
	my %names;

	for my $body ($code =~ /^enum \w+ \{(.*?)\}/msg) {
		$names{$_} = 1 for $body =~ /\b(MOE_\w+)/g;
	}
	$names{$_} = 1 for $code =~ /^#define (MOE_(?:SQE|PHASE|FEATURE)_\w+) 0x/mg;
	for my $body ($code =~ /^struct \w+ \{(.*?)^\}/msg) {
		$names{$_} = 1 for $body =~ /(\w+)\s*(?:\[[^\]]*\])?\s*(?=[;,])/g;
	}
	return grep { !/^(?:reserved\d*|pad\d+|msg)$|_(?:COUNT|STATES|FLAGS)$/ } sort keys %names;
}

sub check_names {
	my ($header, $page) = @_;
	my @names = names_of($header);
	my $text = text($page);

	# Examples use names without saying anything about them.
	$text =~ s/^\.Sh EXAMPLES.*?(?=^\.Sh )//ms;
	my @wrong = grep { $text !~ /\b$_\b/ } @names;
	ok(@names && !@wrong, "$page has the " . @names . " names of $header", @wrong);
}

sub check_arrows {
	my ($header, $page) = @_;
	my (@arrows, @drawn);

	my ($table) = text($header) =~ /moe_request_arrow.*?\{(.*?)\};/s;
	for ($table =~ /^(.*MOE_REQUEST_.*\*\/)$/mg) {
		my ($from) = m{/\* (\w+) \*/} or next;
		push @arrows, map { "$from -> $_" } /<< MOE_REQUEST_(\w+)/g;
	}
	my $text = text($page);
	push @drawn, "$1 -> $2" while $text =~ /^MOE_REQUEST_(\w+)\s+-> MOE_REQUEST_(\w+)/mg;
	my @wrong = differences(\@arrows, $header, \@drawn, $page);
	ok(@arrows > 10 && !@wrong, "$page draws the " . @arrows . " arrows of $header", @wrong);
}

# -- pages --------------------------------------------------------------------------------------------------------

sub check_pages {
	my @pages = files(qr{^docs/man/[^/]*\.\d$});
	my %have = map { m{([^/]*)\.(\d)$}; ("$1 $2" => 1) } @pages;
	my $meson = text('docs/meson.build');
	my @wrong;

	for my $page (@pages) {
		my $text = text($page);
		my ($name, $section) = $page =~ m{([^/]*)\.(\d)$};
		push @wrong, "$page: not in docs/meson.build" unless index($meson, "'man/$name.$section'") >= 0;
		push @wrong, "$page: .Dt says something else" unless $text =~ /^\.Dt \U$name\E $section$/m;
		push @wrong, map { "$page: refers to $_, which is no page" } grep { !$have{$_} }
			$text =~ /^\.Xr ((?:moe-\w+|moectl|expertd\.conf) \d)/mg;
	}
	ok(@pages >= 8 && !@wrong, 'the pages (' . @pages . ') know their names and each other', @wrong);

	for my $command ('mandoc -Tlint -W warning', 'groff -mandoc -ww -Tutf8 -z') {
		my ($renderer) = $command =~ /^(\S+)/;
		if (!grep { -x "$_/$renderer" } split /:/, $ENV{PATH}) {
			ok(1, "# SKIP $renderer is not installed");
			next;
		}
		my @words = map { split /\n/, `$command '$_' 2>&1` } @pages;
		ok(!@words, "$renderer renders the pages without a warning", @words);
	}
}

check_program($_, $programs{$_}[0], "$build/$programs{$_}[1]") for sort keys %programs;
check_settings('docs/man/expertd.conf.5', "$build/tools/moectl");
check_functions('lib/include/moe-expert.h', 'docs/man/moe-expert.3');
check_names($_, $headers{$_}) for sort keys %headers;
check_arrows('lib/uapi/moe_ring.h', 'docs/man/moe-ring.7');
check_pages();
done();
