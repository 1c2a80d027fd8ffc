/* SPDX-License-Identifier: MIT */
/* config-help - what `moe-expertd --help` prints: of settings, what the table says of them. */
#ifndef DAEMON_CONFIG_HELP_H
#define DAEMON_CONFIG_HELP_H

void config_print_help(void);

#endif
