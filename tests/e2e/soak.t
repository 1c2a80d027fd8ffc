#!/bin/sh
# SPDX-License-Identifier: MIT
#
# soak - the soak (tests/soak.sh) in its short form: kills every other second, a thousand sessions that come and go.
exec "$(dirname -- "$0")/../soak.sh" --minutes 0.25 --kill-every 2
