#!/bin/sh
# SPDX-License-Identifier: MIT
#
# doctor - each check has a verdict, and what is not fine says what to type; the exit status is that of the problems.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

# Checks that are there whatever the machine; what is wrong in the document is printed.
judge() {
	perl -MJSON::PP -e '
		my ($file, $code, @wanted) = @ARGV;
		open(my $in, "<", $file) or die; local $/;
		my $report = decode_json(<$in>);
		my (%have, $problems);
		for my $check (@{$report->{checks}}) {
			my $is = "$check->{check}: $check->{verdict}";
			print "$is: no such verdict\n" unless $check->{verdict} =~ /^(?:ok|note|problem)$/;
			print "$is: nothing to type\n" if $check->{verdict} ne "ok" && $check->{fix} eq "";
			print "$is: something to type\n" if $check->{verdict} eq "ok" && $check->{fix} ne "";
			print "$is: says nothing\n" if $check->{found} eq "";
			print "$is: twice\n" if $have{$check->{check}}++;
			$problems += $check->{verdict} eq "problem";
		}
		print "no check of $_\n" for grep { !$have{$_} } @wanted;
		printf "%d problems counted, %d found, exit status %d\n", $report->{problems}, $problems, $code
			if $report->{problems} != $problems || $code != ($problems > 0);
	' "$@" >"$dir/wrong" 2>&1
	[ ! -s "$dir/wrong" ]
}

"$moectl" --socket "$dir/nobody" doctor --json >"$dir/report" 2>"$dir/err"
judge "$dir/report" $? kernel io_uring 'cpu level' 'cpu quota' configuration 'kernel module' 'NUMA balancing' 'transparent huge shmem' 'transparent huge pages' \
	'cgroup memory limit' RLIMIT_MEMLOCK 'GPU driver' daemon
ok $? 'without a daemon' "$dir/wrong"
start_daemon --model "$sample" --name tiny
require $? 'a daemon' "$dir/daemon.log"
"$moectl" --socket "$socket" doctor --json >"$dir/report" 2>"$dir/err"
judge "$dir/report" $? daemon 'disk of tiny' 'pages of tiny, node 0'
ok $? 'with a daemon its models are looked at' "$dir/wrong"
"$moectl" --socket "$socket" doctor --isa nonsense >"$dir/out" 2>"$dir/err"
is $? 2 'a level that there is not'
prlimit --memlock=65536 "$moectl" --socket "$socket" doctor --json >"$dir/report" 2>"$dir/err"
judge "$dir/report" $? RLIMIT_MEMLOCK && grep -q 'LimitMEMLOCK=infinity' "$dir/report"
ok $? 'with little memory to lock it says what to type' "$dir/wrong"
"$moectl" --socket "$socket" doctor >"$dir/out" 2>"$dir/err"
grep -qE '^ +-> ' "$dir/out"
ok $? 'for a person it stands below the line' "$dir/out"
stop_daemon
is $? 0 'the daemon ends'

# -- what the configured models want, on a machine with two nodes -------------------------------------------------

pretend=$(realpath "$build/tests/pretend-nodes.so")
tree=$dir/tree
etc=$tree/etc
kernel=$tree/sys/kernel/mm/transparent_hugepage
mkdir -p "$etc/moe-expertd" "$tree$root" "$tree/proc/sys/kernel" "$kernel"
ln -s "$root/models" "$tree$root/models"
printf '[Models]\nModel=tiny:%s\nPages=auto\n' "$root/$sample" >"$etc/moe-expertd/expertd.conf"
for node in 0 1; do
	for size in 2048kB 1048576kB; do
		mkdir -p "$tree/sys/devices/system/node/node$node/hugepages/hugepages-$size"
		echo 0 >"$tree/sys/devices/system/node/node$node/hugepages/hugepages-$size/nr_hugepages"
	done
done
echo 1 >"$tree/proc/sys/kernel/numa_balancing"
echo 'always madvise [never]' >"$kernel/enabled"
echo 'always within_size advise never [deny] force' >"$kernel/shmem_enabled"

# doctor OPTION...: there, with little memory to lock.
doctor() {
	env -u MOE_EXPERTD_CONFIG PRETEND_NODES=2 LD_PRELOAD="$pretend" \
		prlimit --memlock=65536 "$moectl" --socket "$socket" doctor --root "$tree" "$@"
}
# remedies: the files that it would write, without the root.
remedies() {
	doctor --json "$@" >"$dir/report" 2>"$dir/err"
	perl -MJSON::PP -e 'local $/; my $r = decode_json(<STDIN>);
		print join(" ", map { substr($_->{file}, length $ARGV[0]) } @{$r->{remedies}}), "\n"' "$tree" <"$dir/report"
}
# found CHECK: what is said of it
found() {
	perl -MJSON::PP -e 'local $/; my $r = decode_json(<STDIN>);
		print map { "$_->{verdict}: $_->{found}\n" } grep { $_->{check} eq $ARGV[0] } @{$r->{checks}}' "$1" <"$dir/report"
}
written() { (cd "$tree" && find etc -type f ! -name expertd.conf | sort | tr '\n' ' '); }

huge='/etc/moe-expertd/hugepages-node0.conf /etc/moe-expertd/hugepages-node1.conf'
numa=/etc/sysctl.d/60-moe-expertd-numa.conf
thp='/etc/tmpfiles.d/moe-expertd-thp-shmem.conf /etc/tmpfiles.d/moe-expertd-thp.conf'
limits=/etc/security/limits.d/60-moe-expertd.conf
is "$(remedies)" "$huge $numa $thp $limits" 'doctor --json lists what --fix would write' "$dir/report"
judge "$dir/report" 0 'configured model 1' 'huge pages wanted, node 0' 'huge pages wanted, node 1' 'disk of tiny'
ok $? 'and looks at the models that are configured' "$dir/wrong"
bytes=$(found 'configured model 1' | sed 's/.*(\([0-9]*\) bytes) on each of 2 nodes/\1/')

real=$(realpath "$expertd")
# sizes OPTION...: of the pool files that a daemon with two nodes makes
sizes() {
	printf '#!/bin/sh\nexec env PRETEND_NODES=2 LD_PRELOAD="%s" "%s" "$@"\n' "$pretend" "$real" >"$dir/expertd"
	chmod +x "$dir/expertd"
	(
		expertd=$dir/expertd
		start_daemon --model "$sample" --pages 4k "$@" >/dev/null
		"$moectl" --socket "$socket" models --json >"$dir/models.json"
		stop_daemon
	)
	echo "$(json "$dir/models.json" models.0.pools.0.bytes) $(json "$dir/models.json" models.0.pools.1.bytes)"
}
is "$(sizes)" "$bytes $bytes" 'it counts as many bytes as the daemon takes'
echo 'PoolMax=10M' >>"$etc/moe-expertd/expertd.conf"
remedies >"$dir/out"
bytes=$(found 'configured model 1' | sed 's/.*(\([0-9]*\) bytes) on each of 2 nodes/\1/')
is "$(sizes --pool-max 10M)" "$bytes $bytes" 'of a model of which only a part is in memory, too'
pages=$(((bytes + 2097151) / 2097152))

# -- what there is of them ----------------------------------------------------------------------------------------

node0=$tree/sys/devices/system/node/node0/hugepages/hugepages-2048kB
echo 7 >"$node0/nr_hugepages"
remedies >"$dir/out"
is "$(found 'huge pages 2 MiB, node 0')" 'ok: 7 reserved' 'of a root without the number of free ones only what is known is said'
echo 5 >"$node0/free_hugepages"
remedies >"$dir/out"
is "$(found 'huge pages 2 MiB, node 0')" 'ok: 7 reserved, 5 free' 'else both are those of the root'
rm "$node0/free_hugepages"
echo 0 >"$node0/nr_hugepages"
mkdir -p "$dir/lone/sys/kernel/mm/hugepages/hugepages-1048576kB"
echo 3 >"$dir/lone/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"
env -u MOE_EXPERTD_CONFIG "$moectl" --socket "$socket" doctor --json --root "$dir/lone" >"$dir/report" 2>"$dir/err"
is "$(found 'huge pages 1 GiB, node 0')" 'ok: 3 reserved' 'of a kernel without NUMA they are those of the machine' "$dir/report"
# An image says what its machine has, but a folder that is missing there is this machine's.
if [ -e /sys/devices/system/node/node0/hugepages/hugepages-1048576kB ]; then
	skip 'this machine has pages of 1 GiB'
else
	mkdir -p "$dir/small/proc"
	printf 'flags\t\t: fpu vme pse\n' >"$dir/small/proc/cpuinfo"
	"$moectl" --socket "$socket" doctor --json --root "$dir/small" >"$dir/report" 2>"$dir/err"
	found 'huge pages 1 GiB, node 0' | grep -q '^ok: none: the CPU has no pages of that size'
	ok $? 'a CPU without pages of 1 GiB has none to reserve' "$dir/report"
	printf 'flags\t\t: fpu vme pse pdpe1gb\n' >"$dir/small/proc/cpuinfo"
	"$moectl" --socket "$socket" doctor --json --root "$dir/small" >"$dir/report" 2>"$dir/err"
	is "$(found 'huge pages 1 GiB, node 0')" 'note: unknown' 'else it is not known why there are none' "$dir/report"
fi

# -- writing, after asking ----------------------------------------------------------------------------------------

doctor --fix >"$dir/out" 2>"$dir/err" </dev/null
is "$? $(written)" '2 ' '--fix without a terminal writes nothing'
grep -q 'no terminal to ask at; --yes' "$dir/err"
ok $? 'and says why' "$dir/err"
"$moectl" doctor --yes >"$dir/out" 2>"$dir/err"
is $? 2 '--yes needs --fix'
"$moectl" doctor --fix --json >"$dir/out" 2>"$dir/err"
is $? 2 '--fix has no --json'

# asked ANSWER...: --fix on a terminal, a line for each question
asked() {
	cat >"$dir/asked" <<-END
		#!/bin/sh
		unset MOE_EXPERTD_CONFIG
		export PRETEND_NODES=2 LD_PRELOAD="$pretend"
		exec prlimit --memlock=65536 "$(realpath "$moectl")" --socket "$socket" doctor --root "$tree" --fix
	END
	chmod +x "$dir/asked"
	# Typed one by one, when the question is there.
	perl -e '
		my ($program, $out, @answers) = @ARGV;
		open(my $in, "|-", "script", "-qefc", $program, $out) or die;
		$in->autoflush(1);
		for my $n (1 .. @answers) {
			for (1 .. 1200) {
				open(my $seen, "<", $out); local $/;
				my $text = <$seen> // "";
				last if (() = $text =~ /Write it\?/g) >= $n;
				select(undef, undef, undef, 0.05);
			}
			print $in "$answers[$n - 1]\n";
		}
		close $in;
		exit($? >> 8);
	' "$dir/asked" "$dir/typed" "$@" >/dev/null 2>"$dir/err"
}
if command -v script >/dev/null 2>&1; then
	: >"$dir/typed"
	asked y n '' no yes q
	is $? 0 'on a terminal it asks' "$dir/typed"
	is "$(written)" 'etc/moe-expertd/hugepages-node0.conf etc/tmpfiles.d/moe-expertd-thp.conf ' \
		'and writes what was answered with y or yes, and nothing else' "$dir/typed"
	is "$(grep -c 'Left as it is' "$dir/typed")" 4 'the others are left' "$dir/typed"
	grep -q 'systemctl restart moe-expertd-hugepages@0.service' "$dir/typed"
	ok $? 'it says what to type next' "$dir/typed"
else
	skip 'script is not installed'
fi
echo 'kernel.numa_balancing = 1' | { mkdir -p "$etc/sysctl.d" && cat >"$tree$numa"; }
doctor --fix --yes >"$dir/out" 2>"$dir/err" </dev/null
is $? 0 '--yes writes all without asking' "$dir/err"
for file in $huge $numa $thp $limits; do
	is "$(stat -c %a "$tree$file" 2>"$dir/err")" 644 "there is $file" "$dir/err"
done
is "$(find "$tree/etc" -name '.*' | wc -l)" 0 'and nothing half done beside them'
is "$(grep -v '^#' "$tree$numa" "$tree$limits" | cut -d: -f2 | tr '\n' ';')" \
	'kernel.numa_balancing = 0;@moe-expertd - memlock unlimited;' 'they say what is to be'
grep -q '^  < kernel.numa_balancing = 1' "$dir/out"
ok $? 'what a file has said before is shown' "$dir/out"

# A tree that somebody else has made: links are those of a system there, and none leads out of it.
foreign=$dir/foreign
mkdir -p "$foreign/etc" "$foreign/elsewhere" "$dir/outside"
cp -r "$tree/proc" "$tree/sys" "$foreign/"
ln -s "$dir/outside" "$foreign/etc/sysctl.d"
ln -s ../../../../elsewhere "$foreign/etc/tmpfiles.d"
env -u MOE_EXPERTD_CONFIG PRETEND_NODES=2 LD_PRELOAD="$pretend" "$moectl" --socket "$socket" doctor \
	--root "$foreign" --fix --yes >"$dir/out" 2>"$dir/err" </dev/null
is "$? $(find "$dir/outside" -type f | wc -l)" '1 0' '--fix writes nothing outside of --root' "$dir/err"
grep -q "^moectl: $foreign/etc/sysctl.d: " "$dir/err"
ok $? 'and says what it could not' "$dir/err"
[ -f "$foreign/elsewhere/moe-expertd-thp.conf" ]
ok $? 'a link that stays inside is followed' "$dir/err"

# What the unit's program makes of the file is what was wanted.
for node in 0 1; do
	# shellcheck disable=SC2046 # two words
	env MOE_SYSFS="$tree/sys" $(grep -v '^#' "$etc/moe-expertd/hugepages-node$node.conf") \
		"$root/systemd/moe-expertd-hugepages" $node 2>"$dir/err"
	is "$?:$(cat "$tree/sys/devices/system/node/node$node/hugepages/hugepages-2048kB/nr_hugepages")" "0:$pages" \
		"node $node: the pages are reserved by that file" "$dir/err"
done
is "$(remedies)" '' 'what is there already is not offered again'
doctor --fix --yes >"$dir/out" 2>"$dir/err" </dev/null
is "$(grep -c 'is there already. Type: ' "$dir/out") $(grep -c Written "$dir/out")" '4 0' 'but what to type is' "$dir/out"
is "$(found 'huge pages wanted, node 1')" "ok: $pages of 2 MiB, which are reserved" 'and doctor says so'
echo 0 >"$tree/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
is "$(remedies)" '' 'a file that is there is not offered again'
found 'huge pages wanted, node 1' | grep -q '^note: .*the file for it is there'
ok $? 'but that the pages are not is told' "$dir/report"

# -- told how many ------------------------------------------------------------------------------------------------

is "$(remedies --huge-pages 1G,1:700M)" "$huge" '--huge-pages goes before the models'
perl -MJSON::PP -e 'local $/; my $r = decode_json(<STDIN>); print map { $_->{text} =~ s/^#.*\n//mgr } @{$r->{remedies}}[0, 1]' \
	<"$dir/report" | tr '\n' ' ' >"$dir/out"
is "$(cat "$dir/out")" "PAGES_1G=1 PAGES_2M=$pages PAGES_1G=1 PAGES_2M=$pages " \
	'pages of 1 GiB for that much, and of the others no fewer than the file has' "$dir/report"
remedies --huge-pages 900T >"$dir/out"
found 'huge pages wanted, node 0' | grep -q '^note: .*the node has'
ok $? 'more than the node has is offered by no file' "$dir/report"
doctor --huge-pages 1G,7:1G >"$dir/out" 2>"$dir/err"
is "$?:$(cat "$dir/err")" '2:moectl: --huge-pages 1G,7:1G: this machine has no node 7; its last one is node 1' \
	'a node that there is not is named'
for words in '' x 7:1G 1G,,1G 0:; do
	doctor --huge-pages "$words" >"$dir/out" 2>"$dir/err"
	is $? 2 "--huge-pages '$words' is refused"
done

# -- names that are no UTF-8, and those that are cut ----------------------------------------------------------------

ln -s "$tree" "$dir/$(printf 'tr\351')"
rm "$tree$numa"
n=$(remedies | wc -w)
env -u MOE_EXPERTD_CONFIG PRETEND_NODES=2 LD_PRELOAD="$pretend" prlimit --memlock=65536 "$moectl" --socket "$socket" \
	doctor --json --root "$dir/$(printf 'tr\351')" >"$dir/report" 2>"$dir/err"
is "$(json "$dir/report" 'remedies.#')" "$n" 'a root whose name is no UTF-8 loses no remedy' "$dir/report"
is "$(json "$dir/report" remedies.0.file)" "$dir/tr?/etc/sysctl.d/60-moe-expertd-numa.conf" 'and is told as well as can be'
umlauts=$(printf '%0300d' 0 | sed "s/0/$(printf '\303\244')/g")
for pad in '' x; do
	printf '[Models]\nModel=/%s%s\n' "$pad" "$umlauts" >"$dir/long.conf"
	"$moectl" --socket "$dir/nobody" doctor --config "$dir/long.conf" --json >"$dir/report" 2>"$dir/err"
	found 'configured model 1' >"$dir/out"
	grep -q "/$pad" "$dir/out" && ! grep -q '?' "$dir/out"
	ok $? 'a text that is cut ends with a letter' "$dir/out"
	grep -q "disk of /$pad$(printf '\303\244\303\244')" "$dir/report"
	ok $? 'and so does a name' "$dir/report"
done

# -- what a daemon would not load ---------------------------------------------------------------------------------

# both SAID NAME LINE...: moectl doctor and a daemon say the same of these lines: nothing (0), or that it cannot be (1).
both() {
	expected=$1 name=$2
	shift 2
	printf '[Models]\n' >"$dir/both.conf"
	printf '%s\n' "$@" >>"$dir/both.conf"
	"$moectl" --socket "$dir/nobody" doctor --config "$dir/both.conf" >"$dir/out" 2>"$dir/err"
	grep -qE '^problem +(configured model|huge pages wanted)' "$dir/out"
	is "$((! $?))" "$expected" "doctor: $name" "$dir/out"
	rm -f "$dir/ready"
	mkfifo "$dir/ready"
	"$real" --socket "$dir/both" --config "$dir/both.conf" --ready-fd 3 3>"$dir/ready" 2>"$dir/both.log" >&2 &
	daemon=$!
	started="$started $daemon"
	# shellcheck disable=SC2034 # READY, or the end
	read -r line <"$dir/ready"
	is "$((! $?))" "$((! expected))" 'and the daemon agrees' "$dir/both.log"
	kill "$daemon" 2>/dev/null
	wait "$daemon"
	forget "$daemon"
}

printf '[Models]\nModel=%s\nPages=4k\n' "$root/$sample" >"$dir/one.conf"
"$moectl" --socket "$dir/nobody" doctor --config "$dir/one.conf" --json >"$dir/report" 2>"$dir/err"
bytes=$(found 'configured model 1' | sed 's/.*(\([0-9]*\) bytes) on each of \([0-9]*\) nodes/\1 \2/' | awk '{ print $1 * $2 }')
both 0 'all that the model takes' Pages=4k "MemoryMax=$bytes" "Model=$root/$sample"
both 1 'a byte less' Pages=4k "MemoryMax=$((bytes - 1))" "Model=$root/$sample"
both 1 'two models, where one has room' Pages=4k "MemoryMax=$((bytes + 1000000))" "Model=a:$root/$sample" "Model=b:$root/$sample"
both 1 'two models of one name' Pages=4k "Model=a:$root/$sample" "Model=a:$dir"
grep -q "^problem *configured model 2 .*both.conf:4: Model=a:$dir: the name 'a' is that of another model.*both.conf:3: " "$dir/out" &&
	grep -q "both.conf:4: Model=a:$dir: the name 'a' is that of another model" "$dir/both.log"
ok $? 'and both say which' "$dir/out"
both 1 "the names of two folders" Pages=4k "Model=$root/$sample" "Model=tinymoe:$dir"
both 0 'a model twice, which has room once' Pages=4k "MemoryMax=$bytes" "Model=a:$root/$sample" "Model=a:$root/$sample/"
both 1 'a name that is none' Pages=4k "Model=$(printf '%064d' 0):$root/$sample"
both 1 '1 MiB' Pages=4k MemoryMax=1M "Model=$root/$sample"
both 1 'a few records' Pages=4k PoolMax=100K "Model=$root/$sample"
sed -i 's/^Pages.*/PoolMax=100K/' "$dir/one.conf"
"$moectl" --socket "$dir/nobody" doctor --config "$dir/one.conf" --json >"$dir/report" 2>"$dir/err"
least=$(found 'configured model 1' | sed -n 's/^problem: .* at least [0-9]* needed .*: allow \([0-9]*\) bytes or more$/\1/p')
both 0 'as many records as it needs at least' Pages=4k "PoolMax=$least" "Model=$root/$sample"
both 1 'a byte less' Pages=4k "PoolMax=$((least - 1))" "Model=$root/$sample"

# A model of 12 TB, all holes: no machine has so much memory.
mkdir "$dir/large"
perl -MJSON::PP -e '
	my ($dir, $hidden, $inter) = (shift, 1048576, 1048576);
	my ($at, %h) = (0);
	my $add = sub {
		my ($name, @shape) = @_;
		my $n = 2;
		$n *= $_ for @shape;
		$h{$name} = {dtype => "BF16", shape => \@shape, data_offsets => [$at, $at + $n]};
		$at += $n;
	};
	for my $e (0, 1) {
		$add->("model.layers.0.block_sparse_moe.experts.$e.w$_", $_ == 2 ? ($hidden, $inter) : ($inter, $hidden)) for 1 .. 3;
	}
	my %named = map { ("$_.weight" => $h{$_}) } keys %h;
	my $header = encode_json(\%named);
	open(my $out, ">", "$dir/model.safetensors") or die;
	print $out pack("Q<", length $header), $header;
	close $out;
	truncate("$dir/model.safetensors", 8 + length($header) + $at) or exit 1;
	open(my $config, ">", "$dir/config.json") or die;
	print $config encode_json({architectures => ["MixtralForCausalLM"], model_type => "mixtral", hidden_size => $hidden,
		intermediate_size => $inter, num_local_experts => 2, num_experts_per_tok => 1, num_hidden_layers => 1,
		num_attention_heads => 1, num_key_value_heads => 1, vocab_size => 2, torch_dtype => "bfloat16"});
' "$dir/large" 2>"$dir/err" || rm -r "$dir/large"
if [ -d "$dir/large" ]; then
	for pages in 4k thp auto 2m; do
		both 1 "Pages=$pages, and more than there is" "Pages=$pages" "Model=$dir/large"
		grep -q 'or let what does not fit stay on disk' "$dir/both.log"
		ok $? 'whose advice is that it need not all be there' "$dir/both.log"
	done
else
	skip 'this file system has no files of 12 TB'
fi

# -- what else it would refuse, or pass over -----------------------------------------------------------------------

# look LINE...: doctor of a file with these lines, into $dir/report
look() {
	printf '%s\n' "$@" >"$dir/look.conf"
	"$moectl" --socket "$dir/nobody" doctor --config "$dir/look.conf" --json >"$dir/report" 2>"$dir/err"
}
if [ -e /sys/kernel/mm/hugepages/hugepages-1048576kB ]; then
	skip 'this machine has pages of 1 GiB'
else
	look '[Models]' Pages=1g "Model=$root/$sample"
	is "$?:$(json "$dir/report" 'remedies.#')" "1:$(grep -c '"check": "RLIMIT_MEMLOCK",' "$dir/report" | awk '{ print $1 - 1 }')" \
		'no file makes pages of 1 GiB where there are none' "$dir/report"
	grep -A3 'huge pages wanted' "$dir/report" | grep -q 'Pages=2m or auto'
	ok $? 'but other pages help' "$dir/report"
fi
if [ -e /dev/moe-expert ]; then
	skip 'this machine has the kernel module'
else
	look '[Models]' Module=yes
	is "$?:$(found 'kernel module' | cut -d' ' -f1)" 1:problem: 'Module=yes without the module is a problem' "$dir/report"
	look '[Models]' Module=auto
	is "$(found 'kernel module' | cut -d' ' -f1)" ok: 'Module=auto is none' "$dir/report"
fi
look '[Daemon]' "Soket=$socket" Verbos=yes
judge "$dir/report" $? 'configuration, remark 1' 'configuration, remark 2'
ok $? 'a key that is passed over is noted' "$dir/wrong"
found 'configuration, remark 1' | grep -q '^note: .*look.conf:2: Soket= is unknown .*Socket='
ok $? 'with its line and what may be meant' "$dir/report"
look '[Models]' "Model=$root/$sample" "Model=$root/./$sample" Pages=2m
judge "$dir/report" $? 'configured model 1' 'configured model 2'
ok $? 'a model that is there twice' "$dir/wrong"
is "$(found 'huge pages wanted, node 0' | sed 's/^[a-z]*: \([0-9]* of . .iB\).*/\1/')" "$(look '[Models]' "Model=$root/$sample" Pages=2m
	found 'huge pages wanted, node 0' | sed 's/^[a-z]*: \([0-9]* of . .iB\).*/\1/')" 'is counted once, as it is loaded once' "$dir/report"
look '[Models]' Model=/nowhere
grep -q 'put the model there' "$dir/report" && ! grep -q "as the daemon's user" "$dir/report"
ok $? 'of a folder that is not there no user is to blame' "$dir/report"
look '[Models]' PoolMax=100K "Model=$root/$sample"
grep -q 'raise PoolMax=' "$dir/report" && ! grep -q 'stay on disk' "$dir/report"
ok $? 'where PoolMax= is too small it is not what helps' "$dir/report"

# The service's user, where root may give this machine another /etc for a while.
mkdir -p "$dir/etc/moe-expertd"
# shellcheck disable=SC2016 # of the inner shell
own_etc='mount --bind "$0" /etc 2>/dev/null && exec "$@"'
if [ "$(id -u)" != 0 ] || ! unshare --mount sh -c "$own_etc" "$dir/etc" true 2>/dev/null; then
	skip 'another /etc: needs root and namespaces'
else
	cp /etc/passwd /etc/group /etc/nsswitch.conf /etc/ld.so.cache "$dir/etc/" 2>/dev/null
	echo 'moe-expertd:x:64999:64999::/nonexistent:/bin/false' >>"$dir/etc/passwd"
	cp -r "$root/$sample" "$dir/private"
	printf '[Models]\nModel=%s\n' "$dir/private" >"$dir/etc/moe-expertd/expertd.conf"
	chmod 755 "$dir"
	for mode in 700 755; do
		chmod $mode "$dir/private"
		chmod 644 "$dir/private"/*
		env -u MOE_EXPERTD_CONFIG unshare --mount sh -c "$own_etc" "$dir/etc" "$moectl" --socket "$dir/nobody" \
			doctor --json >"$dir/report" 2>"$dir/err"
		is "$mode $(found 'configured model 1' | cut -d: -f1)" "$mode $([ $mode = 700 ] && echo problem || echo ok)" \
			"a folder of mode $mode, for the service's user" "$dir/report"
	done
	chmod 700 "$dir"
fi

# -- a daemon that refuses -----------------------------------------------------------------------------------------

# advised: what is to be typed for the daemon
advised() {
	perl -MJSON::PP -e 'local $/; my $r = decode_json(<STDIN>);
		print map { "$_->{verdict}: $_->{fix}\n" } grep { $_->{check} eq "daemon" } @{$r->{checks}}' <"$dir/report"
}
start_daemon --uid-limit connections=1
require $? 'a daemon for one connection' "$dir/daemon.log"
mkfifo "$dir/held"
perl -MSocket -e 'socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0) or die; connect($s, pack_sockaddr_un($ARGV[0])) or die;
	open(my $out, ">", $ARGV[1]) or die; print $out "held\n"; close $out; sleep 600' "$socket" "$dir/held" 2>"$dir/err" &
holder=$!
started="$started $holder"
# shellcheck disable=SC2034 # held
read -r line <"$dir/held"
"$moectl" --socket "$socket" doctor --json >"$dir/report" 2>"$dir/err"
is "$?:$(advised | cut -d' ' -f1-3)" '1:problem: end some' 'used up connections are a problem of their own' "$dir/report"
kill "$holder"
wait "$holder" 2>/dev/null
forget "$holder"
stop_daemon
is $? 0 'the daemon ends'
if [ "$(id -u)" != 0 ] || ! command -v setpriv >/dev/null 2>&1; then
	skip 'another user: neither root nor setpriv'
elif ! setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$(realpath "$moectl")"; then
	skip 'another user cannot reach the programs here'
else
	start_daemon --socket-mode 0600
	require $? 'a daemon for one user' "$dir/daemon.log"
	chmod 711 "$dir"
	setpriv --reuid 65534 --regid 65534 --clear-groups "$moectl" --socket "$socket" doctor --json >"$dir/report" 2>"$dir/err"
	is "$?:$(advised | cut -d' ' -f1-3)" '1:problem: usermod -aG' 'and so is a socket of others' "$dir/report"
	chmod 700 "$dir"
	stop_daemon
	is $? 0 'the daemon ends'
fi

# -- what else a file mends ---------------------------------------------------------------------------------------

echo 2 >"$tree/proc/sys/kernel/io_uring_disabled"
PRETEND_NO_URING=$tree
export PRETEND_NO_URING
case " $(remedies) " in *' /etc/sysctl.d/60-moe-expertd-io-uring.conf '*) ok 0 'io_uring that is forbidden' ;; *) ok 1 'io_uring that is forbidden' "$dir/report" ;; esac
is "$(found io_uring)" 'problem: kernel.io_uring_disabled is 2: forbidden to every process' 'is a problem'
unset PRETEND_NO_URING

start_daemon --model "$sample" --name tiny
require $? 'a daemon' "$dir/daemon.log"
mkdir -p "$tree/proc/$daemon"
echo '0::/system.slice/moe-expertd.service' >"$tree/proc/$daemon/cgroup"
printf 'Limit                     Soft Limit           Hard Limit           Units     \n%s\n' \
	'Max locked memory         65536                65536                bytes     ' >"$tree/proc/$daemon/limits"
case " $(remedies) " in *' /etc/systemd/system/moe-expertd.service.d/60-memlock.conf '*) ok 0 "the daemon's unit gets a drop-in" ;; *) ok 1 "the daemon's unit gets a drop-in" "$dir/report" ;; esac
sed -i 's/65536 /unlimited /' "$tree/proc/$daemon/limits"
remedies >"$dir/out"
is "$(found RLIMIT_MEMLOCK)" 'ok: unlimited of the daemon' 'it is the limit of the daemon that counts' "$dir/report"
stop_daemon
is $? 0 'the daemon ends'
# A socket that somebody else has made, as a service manager does: who answers there counts.
mkfifo "$dir/handed"
perl -MSocket -MFcntl -e 'my ($path, $pid, @daemon) = @ARGV;
	socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0) or die;
	bind($s, pack_sockaddr_un($path)) && listen($s, 16) or die;
	my $child = fork // die;
	if (!$child) {
		fcntl($s, F_SETFD, 0) if fileno($s) == 3;
		POSIX::dup2(fileno($s), 3) if fileno($s) != 3;
		@ENV{qw(LISTEN_PID LISTEN_FDS LISTEN_FDNAMES)} = ($$, 1, "moe-expertd.socket");
		exec @daemon;
	}
	open(my $out, ">", $pid) or die;
	print $out "$child\n";
	close $out;
	$SIG{TERM} = sub { kill TERM => $child };
	waitpid($child, 0);' -MPOSIX "$dir/handed.socket" "$dir/handed" \
	"$real" --socket "$dir/handed.socket" --model "$sample" --name tiny 2>"$dir/handed.log" &
parent=$!
started="$started $parent"
read -r child <"$dir/handed"
mkdir -p "$tree/proc/$child"
sed 's/unlimited /65536 /' "$tree/proc/$daemon/limits" >"$tree/proc/$child/limits"
# shellcheck disable=SC2317
handed_answers() { "$moectl" --socket "$dir/handed.socket" status >"$dir/out" 2>"$dir/err"; }
wait_for handed_answers
socket=$dir/handed.socket remedies >"$dir/out"
is "$(found RLIMIT_MEMLOCK)" 'note: 65.54 kB of the daemon: reads use unregistered buffers' \
	'of a socket that somebody else has made it is that of who answers' "$dir/report"
kill "$child"
wait "$parent" 2>/dev/null
forget "$parent"

# -- what goes wrong ----------------------------------------------------------------------------------------------

rm -r "$etc/sysctl.d"
touch "$etc/sysctl.d"
doctor --fix --yes >"$dir/out" 2>"$dir/err" </dev/null
is $? 1 'what cannot be written makes the exit status 1'
grep -q "^moectl: $etc/sysctl.d: Not a directory" "$dir/err"
ok $? 'and is named' "$dir/err"
echo 'Model=/nowhere/at/all' >>"$etc/moe-expertd/expertd.conf"
doctor --json >"$dir/report" 2>"$dir/err"
judge "$dir/report" $? 'configured model 2'
ok $? 'so does a configured model that is not there' "$dir/wrong"
printf '[Pool]\nThreads=none\n' >>"$etc/moe-expertd/expertd.conf"
doctor --json >"$dir/report" 2>"$dir/err"
judge "$dir/report" $? configuration
ok $? 'and a file that is wrong' "$dir/wrong"
case $(found configuration) in problem:*expertd.conf:7:*) ok 0 'which names the line' ;; *) ok 1 'which names the line' "$dir/report" ;; esac
finish
