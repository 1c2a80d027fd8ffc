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
# The public headers are described by all pages of section 3 together, each function by one.
my @public = ('lib/include/moe-error.h', 'lib/include/moe-expert.h');
my @library = files(qr{^docs/man/[^/]*\.3$});
my %headers = (
	(map { $_ => \@library } @public),
	'lib/uapi/moe_ring.h' => 'docs/man/moe-ring.7',
	'lib/uapi/moe_proto.h' => 'docs/man/moe-proto.7',
	'lib/uapi/moe_manifest.h' => 'docs/man/moe-manifest.7',
	'lib/uapi/moe_kmod.h' => 'docs/man/moe-expert.4',
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

	my @verbs = $help =~ /^  ([a-z][a-z-]*)(?= )/mg;
	my $text = text($page);
	@wrong = map { "$_: in --help, not in $page" } grep { $text !~ /\bCm $_\b/ } @verbs;
	push @wrong, map { "$_: in $page, not in --help" }
		grep { my $verb = $_; !grep { $_ eq $verb } @verbs } $text =~ /^\.It Cm ([a-z][a-z-]*)/mg;
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

# -- messages -----------------------------------------------------------------------------------------------------

# What the table says of each event: name, id, level, fields; so does the page, and the journal's catalog has each id.
sub check_messages {
	my ($table, $page, $catalog) = @_;
	my @fields = text('daemon/events.c') =~ /"MOE_([A-Z]+)"/g;
	my (@table, @page, %of_id, @wrong, $name);

	my $code = text($table) =~ s/"\s*\n\s*"//gr;
	my ($who) = $code =~ /^#define WHO \((.*)\)$/m;
	while ($code =~ /\[EVENT_\w+\] =\s*\{"([a-z-]+)",\s*"([0-9a-f]{32})",\s*LOG_LEVEL_(\w+),\s*([^"]*?),\s*"/g) {
		my ($event, $id, $level, $has) = ($1, $2, $3, $4);
		$has =~ s/WHO/$who/;
		my @has = grep { $has =~ /\bEVENT_$_\b/ } @fields;
		push @wrong, "$event: its id is that of $of_id{$id}[0]" if $of_id{$id};
		$of_id{$id} = [$event, @has];
		push @table, join(', ', "$event: $id", $level eq 'ERR' ? 'error' : lc $level, map { "MOE_$_" } @has);
	}
	my ($section) = text($page) =~ /^\.Sh MESSAGES\n(.*?)^\.Sh /ms;
	push @page, "$1: $2" while $section =~ /^\.It Sy ([a-z-]+)\n(.*)\.\n/mg;
	push @wrong, differences(\@table, $table, \@page, $page);
	my @enum = (code_of($table =~ s/c$/h/r) =~ /^enum event \{(.*?)\}/ms)[0] =~ /\bEVENT_\w+/g;
	ok(@table > 10 && @table == @enum && !@wrong, "$page has the " . @table . " messages of $table", @wrong);

	@wrong = ();
	my %entries = map { /^([0-9a-f]{32})\n(.*)/s ? ($1 => $2) : () } split /^-- /m, text($catalog);
	push @wrong, differences([keys %of_id], $table, [keys %entries], $catalog);
	for my $id (sort keys %of_id) {
		my ($event, @has) = @{$of_id{$id}};
		my $entry = $entries{$id} // next;
		push @wrong, "$event: no subject, or no text" unless $entry =~ /^Subject: \S.*?\n\n\S/s;
		push @wrong, map { "$event: has no MOE_$_" } grep { my $f = $_; !grep { $_ eq $f } @has } $entry =~ /\@MOE_(\w+)\@/g;
	}
	ok(!@wrong, "$catalog has them, and uses fields that they have", @wrong);
}

# -- headers ------------------------------------------------------------------------------------------------------

sub code_of { text($_[0]) =~ s{/\*.*?\*/}{}sgr }

# Spelling does not count: "struct moe_client ** ret" is "struct moe_client **ret".
sub squash { $_[0] =~ s/\s+/ /gr =~ s/ ?(\*+) ?/ $1/gr =~ s/^ | $//gr }

# The functions that a header declares, each as one line.
sub declared_in {
	my $code = code_of($_[0]) =~ s/^#.*//mgr;
	my @declared;

	while ($code =~ /^((?:[a-z]\w*[ *]+)+)(moe_\w+)\(((?:[^;{}])*)\);/mg) {
		my ($type, $name, $arguments) = ($1, $2, $3);
		# Commas inside of a function pointer's own list do not part arguments.
		my @arguments = split /,(?![^()]*\))/, $arguments;
		push @declared, squash($type) . " $name(" . join(', ', map { squash($_) } @arguments) . ')';
	}
	return @declared;
}

# Those that a page's synopsis has.
sub described_in {
	my ($page) = @_;
	my $text = text($page);
	my @described;

	while ($text =~ /^\.Ft (.*)\n\.Fo (\S+)\n((?:\.Fa .*\n)*)\.Fc/mg) {
		my ($type, $name, $arguments) = ($1, $2, $3);
		push @described, squash($type) . " $name(" . join(', ', map { squash($_) } $arguments =~ /"(.*)"/g) . ')';
	}
	return @described;
}

# What is in the list more than once.
sub repeated {
	my %seen;
	return grep { $seen{$_}++ == 1 } @_;
}

sub page_names { text($_[0]) =~ /^\.Nm (\w+)(?: ,)?$/mg }

sub check_functions {
	my @headers = @_;
	my @map = text('lib/libmoe-expert.map') =~ /^\t(moe_\w+);/mg;
	my @declared = map { declared_in($_) } @headers;
	my @described = map { described_in($_) } @library;
	my @wrong;

	ok(@map > 10, 'the library has functions (' . @map . ')');
	@wrong = differences([map { /(\w+)\(/ } @declared], 'the headers', \@map, 'lib/libmoe-expert.map');
	ok(!@wrong, 'the public headers declare what the library exports', @wrong);
	@wrong = (differences(\@declared, 'the headers', \@described, 'section 3'),
		map { "$_: in two pages" } repeated(@described));
	ok(!@wrong, 'section 3 has each function once, as the headers declare it', @wrong);

	@wrong = ();
	for my $page (grep { !m{/libmoe-expert\.3$} } @library) {
		my @names = page_names($page);
		my $text = text($page) =~ s/.*^\.Sh DESCRIPTION//msr;
		my ($own) = $page =~ m{/(\w+)\.3$};

		push @wrong, differences(\@names, "NAME of $page", [map { /(\w+)\(/ } described_in($page)], 'its SYNOPSIS');
		push @wrong, "$page: is not one of its functions" unless grep { $_ eq $own } @names;
		push @wrong, map { "$page: says nothing of $_" } grep { $text !~ /^\.Fn $_\b/m } @names;
		push @wrong, "$page: libmoe-expert(3) does not name it"
			unless text('docs/man/libmoe-expert.3') =~ /^\.It Xr $own 3$/m;
	}
	ok(!@wrong, 'each group names and describes its functions, and is in the overview', @wrong);
}

# Numbers and texts with a name; limits of arrays are known from the arrays.
sub check_constants {
	my $text = join '', map { text($_) } @library;
	my @names = map { code_of($_) =~ /^#define (MOE_\w+)[ \t]+\S/mg } @_;
	my @wrong = grep { $text !~ /\b$_\b/ } @names;

	ok(@names >= 4 && !@wrong, 'section 3 has the ' . @names . ' constants of the public headers', @wrong);
}

# docs/meson.build installs a link for each further name of a page.
sub check_links {
	my $meson = text('docs/meson.build');
	my %links;

	while ($meson =~ /^\s*'([\w-]+)': \[([^\]]*)\]/mg) {
		my ($page, $names) = ($1, $2);
		push @{$links{$page}}, $names =~ /'([\w-]+)'/g;
	}
	my @wrong = map {
		my ($own) = m{/([\w-]+)\.3$};
		differences([grep { $_ ne $own } page_names($_)], $_, $links{$own} // [], 'docs/meson.build');
	} grep { !m{/libmoe-expert\.3$} } @library;
	push @wrong, map { "$_: two pages have this name" } repeated(map { page_names($_) } @library);
	ok(keys %links > 5 && !@wrong, 'docs/meson.build has a link for each function without a page of its name', @wrong);
}

# Numbers that the table of moe_attach(3) says, and where the code has them.
my %attach_numbers = (
	model => [['at most %d bytes', 'lib/uapi/moe_manifest.h', 'MOE_NAME_BYTES', -1]],
	entries => [['0: %d.', 'lib/session.c', 'DEFAULT_ENTRIES'],
		['from %d to', 'lib/uapi/moe_ring.h', 'MOE_RING_ENTRIES_MIN'],
		['to %d.', 'lib/uapi/moe_ring.h', 'MOE_RING_ENTRIES_MAX']],
	max_tokens => [['0: %d.', 'lib/session.c', 'DEFAULT_TOKENS'], ['at most %d.', 'lib/uapi/moe_ring.h', 'MOE_TOKENS_MAX']],
	max_steps => [['0: %d.', 'lib/session.c', 'DEFAULT_STEPS'], ['at most %d.', 'lib/session.c', 'STEPS_MAX']],
	cache_topk => [['0: %d.', 'lib/session.c', 'DEFAULT_TOPK_SEEN']],
	update_expert_num => [['0: %d.', 'lib/session.c', 'DEFAULT_UPDATES']],
	watchdog_ms => [['0: %d.', 'lib/engine.h', 'ENGINE_WATCHDOG_MS']],
	register_bytes => [['0: %d,', 'lib/engine.h', 'ENGINE_REGISTER_BYTES']],
	register_wait_ms => [['0: %d.', 'lib/registrar.h', 'REGISTRAR_WAIT_MS']],
	lanes => [['at most %d.', 'lib/lanes.h', 'LANES_MAX']],
	lane_tokens => [['at most %d and', 'lib/lanes.h', 'LANE_TOKENS_MAX'], ['0: %d,', 'lib/lanes.h', 'LANE_TOKENS']],
);

# A number of the code: plain, or shifted.
sub number_in {
	my ($file, $name) = @_;
	text($file) =~ /^#define $name \(?(?:\(uint64_t\))?(\d+)(?: << (\d+)\))?/m or return;
	return $1 << ($2 // 0);
}

sub check_attach_numbers {
	my ($page) = @_;
	my (%said, @now, @wrong);

	for (lines($page)) {
		if (/^\.It\b/) {
			@now = /\bFa (\w+)/g;
		} elsif (/^\.El/) {
			@now = ();
		} else {
			my $line = $_;
			$said{$_} .= $line for @now;
		}
	}
	for my $field (sort keys %attach_numbers) {
		for (@{$attach_numbers{$field}}) {
			my ($words, $file, $name, $less) = @$_;
			my $number = number_in($file, $name);
			my $expected = defined $number ? sprintf($words, $number + ($less // 0)) : "$name of $file";
			push @wrong, "$field: '$expected' is not said"
				unless defined $number && index($said{$field} // '', $expected) >= 0;
		}
	}
	ok(!@wrong, "$page has the defaults and limits of the library", @wrong);
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
	my ($header, $pages) = @_;
	my @names = names_of($header);
	my @pages = ref $pages ? @$pages : $pages;
	my $page = @pages > 1 ? 'section 3' : $pages[0];

	# Examples use names without saying anything about them.
	my $text = join '', map { text($_) =~ s/^\.Sh EXAMPLES.*?(?=^\.Sh )//msr } @pages;
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

# -- security -----------------------------------------------------------------------------------------------------

# What the unit forbids, each test that a claim names, and numbers.
sub check_security {
	my ($page, $unit) = @_;
	my $text = text($page) =~ s/\\\n//gr;
	my ($forbidden) = text($unit) =~ /^# -- what it may not$(.*)^\[Install\]$/ms;
	my @settings = ($forbidden // '') =~ /^(\w+=.*)$/mg;
	my @wrong;

	for (@settings) {
		my ($key, $value) = /^(\w+)=(.*)/;
		# Of lists of system calls each word counts, of others the whole.
		my @words = $key eq 'SystemCallFilter' ? map { s/^~//r } split / /, $value : "$key=$value";
		push @wrong, map { "$_: of $unit, not explained" } grep { $text !~ /(?<!\w)\Q$_\E(?!\w)/ } @words;
	}
	ok(@settings > 20 && !@wrong, "$page explains the " . @settings . " restrictions of $unit", @wrong);

	my %tests = map { m{([^/]+)\.(?:c|t)$} ? ($1 => 1) : () } files(qr{^tests/.*\.[ct]$});
	my @named = map { split / /, $_ } $text =~ /^\.\\" tested by (.*)$/mg;
	@wrong = grep { !$tests{$_} } @named;
	ok(@named > 20 && !@wrong, "the tests that $page names are there", @wrong);

	my $strangers = number_in('daemon/door.h', 'DOOR_STRANGERS_MAX');
	my %calls = map { $_ => number_in('daemon/bus-caller.c', $_) } qw(ASKS_MAX ASKS_CALLER POLKIT_MAX POLKIT_CALLER);
	my %readers = map { $_ => number_in('daemon/bus-documents.c', $_) } qw(READERS_MAX READERS_CALLER);
	@wrong = grep { index($text, $_) < 0 } "$strangers such strangers",
		"$calls{ASKS_MAX} calls may wait for the bus's word who calls, $calls{ASKS_CALLER} of one connection",
		"$calls{POLKIT_MAX} for polkit's leave, $calls{POLKIT_CALLER} of one user",
		"$readers{READERS_MAX} calls may wait for documents at a time, $readers{READERS_CALLER} of one connection";
	ok(!@wrong, "$page has the numbers of the code", @wrong);
}

# -- pages --------------------------------------------------------------------------------------------------------

sub check_pages {
	my @pages = files(qr{^docs/man/[^/]*\.\d$});
	my %have = map { m{([^/]*)\.(\d)$}; ("$1 $2" => 1) } @pages;
	$have{"$_ 3"} = 1 for map { page_names($_) } @library;
	my $meson = text('docs/meson.build');
	my @wrong;

	for my $page (@pages) {
		my $text = text($page);
		my ($name, $section) = $page =~ m{([^/]*)\.(\d)$};
		push @wrong, "$page: not in docs/meson.build"
			unless $section == 3 ? $meson =~ /^  '$name': \[/m : index($meson, "'man/$name.$section'") >= 0;
		push @wrong, "$page: .Dt says something else" unless $text =~ /^\.Dt \U$name\E $section$/m;
		push @wrong, map { "$page: refers to $_, which is no page" } grep { !$have{$_} }
			$text =~ /\bXr ((?:moe[-_]\w+|moectl|libmoe-expert|expertd\.conf|org\.moeexpertd\.\w+) \d)/mg;
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
check_functions(@public);
check_constants(@public);
check_links();
check_attach_numbers('docs/man/moe_attach.3');
check_messages('daemon/events.c', 'docs/man/moe-expertd.8', 'systemd/moe-expertd.catalog');
check_names($_, $headers{$_}) for sort keys %headers;
check_arrows('lib/uapi/moe_ring.h', 'docs/man/moe-ring.7');
check_security('docs/man/moe-expertd-security.7', 'systemd/moe-expertd.service.in');
check_pages();
done();
