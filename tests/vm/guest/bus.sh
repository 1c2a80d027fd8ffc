# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # main has sourced lib.sh
#
# bus.sh - org.moeexpertd.Manager1 on the real system bus.

object='org.moeexpertd /org/moeexpertd'
manager="$object org.moeexpertd.Manager1"
bus() { # VERB OBJECT WORD...
	verb=$1
	place=$2
	shift 2
	# Word splitting is meant.
	# shellcheck disable=SC2086
	busctl "$verb" $place "$@"
}
introspects() { busctl introspect org.moeexpertd /org/moeexpertd | grep -E 'LoadModel +method'; }

step 'busctl introspect' introspects
step 'GetStatus answers' contains "$(bus call "$manager" GetStatus)" '^s .*state'
step 'for anybody' runuser -u stranger -- busctl call org.moeexpertd /org/moeexpertd org.moeexpertd.Manager1 GetStats
step 'NModels' equal "$(bus get-property "$manager" NModels)" 'u 1'
step 'the model is an object' contains "$(busctl tree --list org.moeexpertd)" '/org/moeexpertd/model/'
load='busctl call org.moeexpertd /org/moeexpertd org.moeexpertd.Manager1 LoadModel sa{sv} /srv/tinymoe 1 name s again'
# shellcheck disable=SC2086
step 'LoadModel is refused to a stranger, where no polkit is' refuses runuser -u stranger -- $load
note "$(head -n 1 refused)"
# shellcheck disable=SC2086
step 'and done for root' $load
models() { equal "$(bus get-property "$manager" NModels)" "u $1"; }
step 'there are two models then' wait_for models 2
step 'UnloadModel' bus call "$manager" UnloadModel s again
step 'leaves one' wait_for models 1
