/* SPDX-License-Identifier: MIT */
/* completion - moectl's verbs and options in the words of shells, from the table of verbs. */
#include <stdio.h>
#include <string.h>

#include "moectl.h"
#include "policy/policy.h"

/* Letters of the options whose value is a file or a folder. */
static const char file_options[] = "sgcrWCFMbO";

static void list_verbs(const char *between)
{
	for (const struct verb *v = verbs; v->name; v++)
		printf("%s%s", v == verbs ? "" : between, v->name);
}

static void list_policies(void)
{
	for (size_t i = 0; policy_at(i); i++)
		printf("%s ", policy_at(i)->name);
	printf("belady belady-pinned");
}

/* What a verb takes, "--socket --json". */
static void list_options(const struct verb *v)
{
	printf("--socket --help");
	for (const char *letter = v->options; letter && *letter; letter++)
		printf(" %s", arguments_option(*letter));
}

/* "--socket | --svg" */
static void list_file_options(void)
{
	for (const char *letter = file_options; *letter; letter++)
		printf("%s%s", letter == file_options ? "" : " | ", arguments_option(*letter));
}

static void print_bash(void)
{
	/* Outside of a completion, in tests, compopt has nothing to change. */
	printf("# moectl completion bash\n"
	       "_moectl_files()\n{\n"
	       "\tcompopt -o filenames 2>/dev/null\n"
	       "\tmapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen \"${@:1:$#-1}\" -- \"${!#}\")\n}\n"
	       "_moectl()\n{\n"
	       "\tlocal word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb= i\n"
	       "\tCOMPREPLY=()\n"
	       "\tfor ((i = 1; i < COMP_CWORD; i++)); do\n"
	       "\t\tcase ${COMP_WORDS[i]} in\n"
	       "\t\t--socket) i=$((i + 1)) ;;\n"
	       "\t\t-*) ;;\n"
	       "\t\t*) verb=${COMP_WORDS[i]}; break ;;\n"
	       "\t\tesac\n\tdone\n"
	       "\tcase $before in\n"
	       "\t");
	list_file_options();
	printf(") _moectl_files -f \"$word\"; return ;;\n"
	       "\t--to) COMPREPLY=($(compgen -W 'binary jsonl json moetrc loads expert-map' -- \"$word\")); return ;;\n"
	       "\t--isa) COMPREPLY=($(compgen -W 'auto ref avx2 avx512 amx' -- \"$word\")); return ;;\n"
	       "\t--policy)\n"
	       "\t\tif [ \"$verb\" = simulate ]; then COMPREPLY=($(compgen -W '");
	list_policies();
	printf("' -- \"$word\"))\n"
	       "\t\telse COMPREPLY=($(compgen -W 'eplb eplb-global random dynamic dynamic_ep swift swift-exact "
	       "swift-upstream flashlb hot' -- \"$word\")); fi\n"
	       "\t\treturn ;;\n"
	       "\t--mode) COMPREPLY=($(compgen -W 'pinned atomic belady belady-pinned' -- \"$word\")); return ;;\n"
	       "\t--name | --huge-pages | --capacity | --cost | --param | --replicas | --groups | --nodes | --gpus | "
	       "--model | "
	       "--seconds | --steps | --max-bytes) return ;;\n"
	       "\tesac\n"
	       "\tcase $verb in\n"
	       "\t'') COMPREPLY=($(compgen -W '--socket --help --version ");
	list_verbs(" ");
	printf("' -- \"$word\")) ;;\n");
	for (const struct verb *v = verbs; v->name; v++) {
		printf("\t%s) COMPREPLY=($(compgen -W '", v->name);
		list_options(v);
		if (v->run == verb_completion)
			printf(" bash zsh fish");
		if (v->run == verb_trace)
			printf(" record stop show convert");
		printf("' -- \"$word\"))%s ;;\n",
		       v->run == verb_load ? "; _moectl_files -d \"$word\"; _moectl_files -f -X '!*.gguf' \"$word\""
		       : v->run == verb_simulate || v->run == verb_trace ? "; _moectl_files -f \"$word\""
									 : "");
	}
	printf("\tesac\n}\ncomplete -F _moectl moectl\n");
}

static void print_zsh(void)
{
	printf("#compdef moectl\n# moectl completion zsh\n_moectl() {\n"
	       "\tlocal -a verbs\n\tverbs=(\n");
	for (const struct verb *v = verbs; v->name; v++) {
		printf("\t\t\"%s:", v->name);
		for (const char *p = v->help; *p; p++)
			printf("%s%c", *p == ':' ? "\\" : "", *p);
		printf("\"\n");
	}
	printf("\t)\n\tif (( CURRENT == 2 )); then\n\t\t_describe verb verbs\n\t\treturn\n\tfi\n\tcase $words[2] in\n");
	for (const struct verb *v = verbs; v->name; v++) {
		printf("\t%s) compadd -- ", v->name);
		list_options(v);
		printf("%s ;;\n", v->run == verb_load         ? "; _files -g '*.gguf(-.)'; _files -/"
				  : v->run == verb_simulate   ? "; _files"
				  : v->run == verb_trace      ? " record stop show convert; _files"
				  : v->run == verb_completion ? " bash zsh fish"
							      : "");
	}
	printf("\tesac\n}\nif [ \"$funcstack[1]\" = _moectl ]; then\n\t_moectl \"$@\"\nelse\n\tcompdef _moectl "
	       "moectl\nfi\n");
}

/* In single quotes, where only those and backslashes mean something. */
static void print_quoted(const char *text)
{
	putchar('\'');
	for (; *text; text++)
		printf("%s%c", *text == '\'' || *text == '\\' ? "\\" : "", *text);
	putchar('\'');
}

static void print_fish(void)
{
	printf("# moectl completion fish\ncomplete -c moectl -f\n"
	       "complete -c moectl -l socket -r -F -d 'socket of the daemon'\n"
	       "complete -c moectl -s h -l help -d 'verbs and options'\n");
	for (const struct verb *v = verbs; v->name; v++) {
		printf("complete -c moectl -n __fish_use_subcommand -a %s -d ", v->name);
		print_quoted(v->help);
		putchar('\n');
		for (const char *letter = v->options; letter && *letter; letter++)
			printf("complete -c moectl -n '__fish_seen_subcommand_from %s' -l %s%s%s\n", v->name,
			       arguments_option(*letter) + 2, arguments_wants_value(*letter) ? " -r" : "",
			       strchr(file_options, *letter) ? " -F" : "");
	}
	printf("complete -c moectl -n '__fish_seen_subcommand_from load simulate trace' -F\n"
	       "complete -c moectl -n '__fish_seen_subcommand_from trace' -a 'record stop show convert'\n"
	       "complete -c moectl -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'\n");
}

int verb_completion(const struct arguments *arg)
{
	const char *shell = arg->words[0];

	if (strcmp(shell, "bash") == 0) {
		print_bash();
	} else if (strcmp(shell, "zsh") == 0) {
		print_zsh();
	} else if (strcmp(shell, "fish") == 0) {
		print_fish();
	} else {
		fprintf(stderr, "moectl: completion %s: bash, zsh or fish expected\n", shell);
		return EXIT_USAGE;
	}
	return EXIT_DONE;
}
