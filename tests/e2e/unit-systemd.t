#!/bin/sh
# SPDX-License-Identifier: MIT
#
# unit-systemd - the installed unit under a systemd of its own: READY, reload, watchdog, restart and stop, and a worker that
# goes on through all of it; and the socket unit, whose first client starts the daemon.
#
# The manager is of the user kind (tests/e2e/systemd.sh): without User= and the namespaces of the unit, which only the
# system's manager makes, but with its system call filter, its limits, its store of descriptors and no capabilities.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"
# shellcheck source=tests/e2e/systemd.sh
. "$root/tests/e2e/systemd.sh"

if [ -z "${MOE_OWN_SYSTEMD-}" ]; then
	command -v systemctl >/dev/null 2>&1 || skip_all 'systemctl is not installed'
	need_systemd
	MOE_OWN_SYSTEMD=1
	export MOE_OWN_SYSTEMD
	where_systemd_is "$0"
	code=$?
	leave_groups
	exit $code
fi

units=$dir/units
XDG_RUNTIME_DIR=$dir/run
export XDG_RUNTIME_DIR
unset DBUS_SESSION_BUS_ADDRESS JOURNAL_STREAM NOTIFY_SOCKET
mkdir "$units" "$XDG_RUNTIME_DIR"
conf=$dir/expertd.conf
printf '[Models]\nModel=tiny:%s\n[Pool]\nThreads=1\n' "$root/$sample" >"$conf"
sed -e "s,^ExecStart=.*,ExecStart=$(realpath "$expertd") --config $conf --socket $socket," \
	-e 's/^WatchdogSec=.*/WatchdogSec=5s\nTimeoutAbortSec=2s/' \
	-e '/^User=/d' -e '/^Group=/d' -e '/^Private/d' -e '/^Protect/d' -e '/^RestrictNamespaces=/d' -e '/^DevicePolicy=/d' \
	-e '/^IPAddressDeny=/d' -e '/^RuntimeDirectory/d' -e '/^RemoveIPC=/d' -e '/^KeyringMode=/d' -e '/^OOMScoreAdjust=/d' \
	-e "s,^\\[Service\\]\$,&\\nStandardError=append:$dir/daemon.log," -e '/^Description=/s/$/\nDefaultDependencies=no/' \
	"$build/systemd/moe-expertd.service" >"$units/moe-expertd.service"
sed -e "s,^ListenSequentialPacket=.*,ListenSequentialPacket=$socket," -e '/^Socket\(User\|Group\)=/d' \
	-e '/^Description=/s/$/\nDefaultDependencies=no/' "$build/systemd/moe-expertd.socket" >"$units/moe-expertd.socket"
printf '[Unit]\nDefaultDependencies=no\n' >"$units/start.target"
# For SIGTERM, with which a test that fails ends it.
printf '[Unit]\nDefaultDependencies=no\nSuccessAction=exit-force\n' >"$units/exit.target"
: >"$dir/daemon.log"

SYSTEMD_UNIT_PATH=$units /lib/systemd/systemd --user --unit=start.target --log-target=console >"$dir/systemd.log" 2>&1 </dev/null &
manager=$!
started="$started $manager"
ctl() { timeout 300 systemctl --user "$@" >"$dir/ctl" 2>&1; }
# shellcheck disable=SC2317 # wait_for calls it
answers() { systemctl --user is-active start.target >"$dir/ctl" 2>&1; }
patience=30
if ! wait_for answers; then
	sed 's/^/# /' "$dir/systemd.log" "$dir/ctl"
	skip_all 'systemd does not run here'
fi
patience=120

# status FIELD: of the daemon that runs
status() {
	"$moectl" --socket "$socket" status --json >"$dir/status.json" 2>"$dir/moectl.err" && json "$dir/status.json" "$1"
}
property() { systemctl --user show -p "$1" --value "$2"; }
# by_another PROCESS: is it served by another one than that?
# shellcheck disable=SC2317
by_another() { now=$(status pid) && [ "$now" != "$1" ] && [ "$(json "$dir/status.json" state)" = ready ]; }

# -- READY and reload ---------------------------------------------------------------------------------------------

ctl start moe-expertd.service
require $? 'systemctl start returns when the daemon is ready' "$dir/daemon.log"
is "$(status state)" ready 'it answers' "$dir/moectl.err"
first=$(status pid)
is "$(property MainPID moe-expertd.service)" "$first" 'it is the main process of the unit'
is "$(status kept)" 1 'systemd keeps models and sessions for it' "$dir/status.json"
is "$(sed -n 's/^CapEff:\t//p' "/proc/$first/status")" 0000000000000000 'it has no capability'
is "$(sed -n 's/^Seccomp:\t//p' "/proc/$first/status")" 2 'and a filter of system calls'
case $(property StatusText moe-expertd.service) in *'1 model'*) ok 0 'its status says what it serves' ;; *) ok 1 'its status says what it serves' ;; esac
sed -i 's/^Threads=1/&\nSpin=3\n[Limits]\nUidSessions=7/' "$conf"
ctl reload moe-expertd.service
is $? 0 'systemctl reload' "$dir/ctl"
grep -q 'reloaded the configuration: 1 settings changed' "$dir/daemon.log"
ok $? 'reads the configuration again' "$dir/daemon.log"

# -- what goes on -------------------------------------------------------------------------------------------------

long_text
"$worker" score --model "$sample" --experts cpu --daemon "$socket" --text "$dir/long.txt" >"$dir/out" 2>"$dir/err" &
scorer=$!
started="$started $scorer"
wait_for have_sessions 1
require $? 'a worker scores' "$dir/err"
kill -STOP "$first"
wait_for by_another "$first"
require $? 'a daemon that stands still is ended by the watchdog, and the next one is there' "$dir/systemd.log"
is "$(status weight_bytes_read) $(status restarts)" '0 1' 'it has read no weights' "$dir/status.json"
is "$(sessions)" 1 'the worker is still there'
second=$(status pid)
ctl restart moe-expertd.service
is $? 0 'systemctl restart' "$dir/ctl"
wait_for by_another "$second"
is "$?:$(status weight_bytes_read)" 0:0 'reads none either' "$dir/status.json"
is "$(sessions)" 1 'the worker goes on'
third=$(status pid)
kill -9 "$third"
wait_for by_another "$third"
is "$?:$(status weight_bytes_read):$(sessions)" 0:0:1 'nor does kill -9' "$dir/status.json"
ctl daemon-reexec
wait_for answers
is "$?:$(status weight_bytes_read):$(sessions)" 0:0:1 'systemctl daemon-reexec disturbs nobody' "$dir/ctl"
kill -0 "$scorer" 2>/dev/null
ok $? 'the worker has noticed nothing' "$dir/err"
kill "$scorer"
wait "$scorer" 2>/dev/null
forget "$scorer"
ctl stop moe-expertd.service
is $? 0 'systemctl stop' "$dir/ctl"
is "$(property ActiveState moe-expertd.service) $(property NFileDescriptorStore moe-expertd.service)" 'inactive 0' \
	'ends it, and nothing is kept'

# -- the socket unit ----------------------------------------------------------------------------------------------

ctl start moe-expertd.socket
is $? 0 'the socket unit listens' "$dir/ctl"
is "$(property ActiveState moe-expertd.service)" inactive 'without a daemon'
status pid >"$dir/out"
ok $? 'the first client starts it, and is answered' "$dir/moectl.err"
wait_for by_another 0
is "$?:$(property ActiveState moe-expertd.service)" 0:active 'the daemon is there' "$dir/status.json"
ctl stop moe-expertd.socket moe-expertd.service
is $? 0 'both are stopped' "$dir/ctl"
kill -9 "$manager" # it has nothing left, and exits by itself only at the end of a session
wait "$manager" 2>/dev/null
forget "$manager"
finish
