# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # main has sourced lib.sh
#
# load.sh - the daemon is killed, stopped by its watchdog, restarted, and systemd itself executed anew, all under one
# worker: it goes on, its score is the quiet one's, and no weights are read again.

score() { # TEXT: into the file scored
	moe-worker score --model /srv/tinymoe --experts cpu --daemon "$socket" --text "$1" --json >scored 2>score.err || {
		cat score.err
		return 1
	}
}
nll() { jq -r .nll_per_token scored; }

# Some windows of 256 bytes that take a while on this machine, and their score; the same windows twice have the same.
quiet_score() {
	windows=1
	while :; do
		head -c $((windows * 256)) /srv/tinymoe/text.txt >text
		began=$(uptime_s)
		score text || return 1
		quiet_s=$(($(uptime_s) - began))
		if [ "$quiet_s" -ge 4 ] || [ "$windows" = 64 ]; then
			break
		fi
		windows=$((windows * 2))
	done
	nll >quiet
}

# A worker with the quiet one's work again and again, for about so long if nobody disturbs it: an emulated machine may
# take 5 or 30 s for one window.
begin_worker() { # SECONDS
	rm -f worker.code
	: >long
	for _ in $(seq $(($1 / (quiet_s > 0 ? quiet_s : 1) + 1))); do
		cat text >>long
	done
	{
		score long
		echo $? >worker.code
	} &
	wait_for has_session
}
has_session() { contains "$(status .sessions)" '^[1-9]'; }
works() { [ ! -e worker.code ]; }
has_ended() { [ -s worker.code ]; }
same_score() { jq -en --argjson a "$(nll)" --argjson b "$(cat quiet)" '($a - $b) / $b | fabs < 1e-9'; }
end_worker() {
	patience=300 wait_for has_ended || {
		moectl sessions
		moectl status
		pkill moe-worker
		return 1
	}
	cat score.err
	equal "$(cat worker.code)" 0 && same_score
}

main_pid() { property MainPID; }
is_new() { # PID: another daemon is there, and ready
	[ "$(main_pid)" != "$1" ] && has ActiveState active && [ "$(status .pid)" = "$(main_pid)" ]
}
nothing_read() { equal "$(status .weight_bytes_read)" 0; }
survives() { # NAME COMMAND...: after the command there is another daemon
	what=$1
	shift
	before=$(main_pid)
	step "$what" "$@"
	step "$what: another daemon is there" wait_for is_new "$before"
	step "$what: it has read no weights" nothing_read
	step "$what: the model is there" equal "$(moectl models --json | jq -r '.models[].name')" tinymoe
	step "$what: the worker is at work" works
}

step 'a quiet score' quiet_score || return 1
note "$windows windows in $quiet_s s, nll $(cat quiet)"
# Longer than all of this takes, also where the machine was slower for the quiet score than it is from here on.
step 'a worker with more of the same' begin_worker 70 || return 1
survives 'kill -9' systemctl kill --kill-whom=main -s KILL "$unit"
survives 'systemctl restart' systemctl restart "$unit"
before=$(main_pid)
step 'systemctl daemon-reexec' systemctl daemon-reexec
step 'the daemon does not notice' equal "$(main_pid)" "$before"
step 'its watchdog goes on' wait_for has ActiveState active
survives 'kill -9 after daemon-reexec' systemctl kill --kill-whom=main -s KILL "$unit"
step 'systemctl reload under load' systemctl reload "$unit"
survives 'a daemon that hangs' systemctl kill --kill-whom=main -s STOP "$unit"
step 'was ended by the watchdog' contains "$(journalctl -q -u "$unit" -o cat)" '[Ww]atchdog timeout'
note "the worker is waited for ($(uptime_s) s)"
step 'the worker ends well, with the quiet score' end_worker
step 'no session is left' equal "$(status .sessions)" 0
