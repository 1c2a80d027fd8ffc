/* SPDX-License-Identifier: MIT */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/stdout.h"
#include "moectl.h"
#include "settings/settings.h"

const struct verb verbs[] = {
	{"status", verb_status, 0, "status", "is the daemon ready, what runs", "j", "moectl status --json | jq .state"},
	{"stats", verb_stats, 0, "stats [--watch[=SECONDS]]",
	 "pairs by path, hit rate, fills: per layer, model, session", "jwpE",
	 "moectl stats --watch=2\ncd /var/lib/prometheus/node-exporter && moectl stats --prometheus > moe.new && "
	 "mv moe.new moe.prom"},
	{"top", verb_top, 0, "top [--watch=SECONDS] [--once]", "who computes what just now, on a screen of its own",
	 "wo", "moectl top --watch=2\nmoectl top --once > top.txt"},
	{"heat", verb_heat, 1, "heat MODEL [--svg FILE | --forget]",
	 "which experts are used: layers x experts, as a picture", "jgz",
	 "moectl heat qwen\nmoectl heat qwen --svg heat.svg\nmoectl heat qwen --forget"},
	{"models", verb_models, 0, "models", "loaded models: shape, digest, page sizes", "j",
	 "moectl models --json | jq -r '.models[].digest'"},
	{"sessions", verb_sessions, 0, "sessions", "attached workers", "j", "moectl sessions"},
	{"load", verb_load, 1, "load PATH [--name NAME]", "bring a model into memory: a Hugging Face folder or GGUF",
	 "jn", "moectl load /models/Qwen3-30B-A3B --name qwen"},
	{"unload", verb_unload, 1, "unload NAME", "give a model's memory back", "", "moectl unload qwen"},
	{"set-policy", verb_set_policy, 2, "set-policy MODEL POLICY",
	 "of a tiered model: which expert makes room from now on", "", "moectl set-policy qwen ema"},
	{"simulate", verb_simulate, 1, "simulate FILE [OPTION]...", "what caches would have found in a recorded trace",
	 "jgPkmbxate",
	 "moectl simulate trace.moetrc\nmoectl simulate trace.jsonl --policy lru,ema --capacity 8,16,32 --svg "
	 "rates.svg\n"
	 "moectl simulate trace.moetrc --together --policy ema --cost expert=13M,link=25,device=2000,cpu=200\n"
	 "moectl simulate vectors.json --json | jq '.cases[].results[].total'"},
	{"trace", verb_trace, -1, "trace record|stop|show|convert ...",
	 "what routers choose: record it, show it, write it in another form", "jLOSUBAtPRGNDF",
	 "moectl trace record --model qwen --seconds 60 --output qwen.moetrace\nmoectl trace show qwen.moetrace\n"
	 "moectl trace convert qwen.moetrace qwen.jsonl --to jsonl\n"
	 "moectl trace convert qwen.moetrace - --to loads\n"
	 "moectl trace convert qwen.moetrace map.json --to expert-map --gpus 8 --replicas 160\nmoectl trace stop"},
	{"config", verb_config, 0, "config [--config FILE | --root DIR]",
	 "what the files of expertd.conf(5) say, and where each value is from", "jcr",
	 "moectl config\nmoectl config --root /mnt/image --json"},
	{"doctor", verb_doctor, 0, "doctor [--isa LEVEL] [--fix [--yes]]",
	 "check this machine; print what to type for each problem; write the files that mend some", "jifyHcr",
	 "moectl doctor\nmoectl doctor --isa amx\nmoectl doctor --fix\n"
	 "moectl doctor --fix --huge-pages 27G,1:30G"},
	{"plan", verb_plan, 0, "plan --policy NAME --weights FILE --gpus D",
	 "which rank should hold which experts; needs no daemon", "jPWRGNDCFMTc",
	 "moectl plan --policy eplb --weights heat.json --replicas 288 --groups 8 --nodes 4 --gpus 32 --json\n"
	 "moectl plan --policy swift --weights heat.json --from now.json --map next.json --transfers\n"
	 "moectl plan --policy dynamic --case eplb-ascend.json --json\n"
	 "moectl plan --from now.json"},
	{"completion", verb_completion, 1, "completion SHELL", "what bash, zsh or fish complete moectl's words with",
	 "", "eval \"$(moectl completion bash)\""},
	{0},
};

static const struct {
	char letter;
	const char *text;
} option_texts[] = {
	{'j', "--json            print the daemon's JSON document"},
	{'n', "--name NAME       load: the name under which workers attach"},
	{'w', "--watch[=SECONDS] stats: again and again, every second or so often; top: how often"},
	{'o', "--once            top: one frame, as text"},
	{'p', "--prometheus      stats: print what Prometheus reads"},
	{'E', "--figures         stats: every figure that Prometheus reads, with what it means"},
	{'g', "--svg FILE        heat, simulate: write the picture there; - is standard output"},
	{'z', "--forget          heat: begin anew, also on disk, and print nothing"},
	{'P', "--policy LIST     simulate: lru,ema,belady; default: what the file names, else all that make room"},
	{'k', "--capacity LIST   simulate: slots of a layer; default: what the file names, else 1/8, 1/4, 1/2 of the "
	      "experts"},
	{'m', "--mode LIST       simulate: pinned, atomic, belady, belady-pinned; default: pinned"},
	{'b', "--calibrate FILE  simulate: a trace whose most used experts static starts with"},
	{'x', "--cost RATES      simulate: time of a step by a model, as expert=13M,link=25,device=2000,cpu=200 "
	      "(bytes, GB/s)"},
	{'a', "--param LIST      simulate: numbers of rules, as kept=0.9,period=32,alpha=0.25,small=0.2"},
	{'t',
	 "--together        simulate, trace show, trace convert: a moetrc's sequences step by step beside each other"},
	{'e', "--evictions       simulate --json: the log of evictions"},
	{'L', "--model NAME      trace record: the sessions of this model (default: all)"},
	{'O', "--output FILE     trace record: into this one (default: moe-DATE-TIME.moetrace here)"},
	{'S', "--seconds NUMBER  trace record: so long (default: until Ctrl-C or moectl trace stop)"},
	{'U', "--steps NUMBER    trace record: until a session has so many"},
	{'B', "--max-bytes SIZE  trace record: a file of at most so many, 100M (default: 1G)"},
	{'A', "--to FORM         trace convert: binary, jsonl, json, moetrc, loads (pairs of each expert) or\n"
	      "                    expert-map (where plan would have them)"},
	{'c', "--config FILE     config, doctor: read this one and no other (default: $MOE_EXPERTD_CONFIG, else the "
	      "system's)"},
	{'r', "--root DIR        config, doctor: read the files of the system below DIR, and write them there"},
	{'i', "--isa LEVEL       doctor: could the kernels run at it? auto, ref, avx2, avx512, amx"},
	{'P',
	 "--policy NAME     plan, trace convert: eplb, eplb-global, random, dynamic, dynamic_ep, swift, swift-exact, "
	 "swift-upstream, flashlb or\n"
	 "                    hot (whole copies on NUMA nodes, as the daemon makes them);\n"
	 "                    swift, the default of trace convert, has right averages, with --case those of "
	 "upstream, as published\n"
	 "                    results have"},
	{'W', "--weights FILE    plan: JSON: loads [layer][expert], or what moectl heat --json prints"},
	{'R', "--replicas P      plan, trace convert: slots of all GPUs, of hot of all nodes, together (default: one "
	      "for each expert)"},
	{'G', "--groups G        plan, trace convert: groups of experts, of eplb (default: 1)"},
	{'N', "--nodes N         plan, trace convert: nodes on which groups are packed, of eplb (default: 1); of hot "
	      "those that have "
	      "copies"},
	{'D', "--gpus D          plan, trace convert: ranks that share the slots (default: as --from has)"},
	{'C', "--case FILE       plan: JSON: one case, or {\"cases\": [...]}; without --policy cases of expert maps"},
	{'F', "--from FILE       plan, trace convert: an expert map, how it is now; without --policy it is checked and "
	      "shown"},
	{'M', "--map FILE        plan: write the new expert map there; - is standard output"},
	{'c', "--config FILE     plan: JSON: vLLM Ascend's eplb_config; alone it is checked and shown;\n"
	      "                    with --weights the new map goes to its expert_map_record_path"},
	{'T', "--transfers       plan: who sends what to whom, from --from or the case's placement"},
	{'f', "--fix             doctor: show each file that mends something, ask, and write it"},
	{'y', "--yes             doctor --fix: write them all without asking"},
	{'H', "--huge-pages SIZES  doctor: reserve so much on each node, 27G, or 0:27G,1:20G (default: what the models "
	      "take)"},
};

#define TEXT_COLUMN 18 /* where an option's text names its verbs, up to a colon */

/* Of a letter that two verbs take for different words, the line that names this one. */
static bool is_of(const struct verb *v, size_t i)
{
	const char *at;

	if (!v)
		return true;
	if (!v->options || !strchr(v->options, option_texts[i].letter))
		return false;
	if (option_texts[i].letter != 'P' && option_texts[i].letter != 'c')
		return true;
	at = strstr(option_texts[i].text + TEXT_COLUMN, v->name);
	return at && at < strchr(option_texts[i].text, ':');
}

/* Of one verb, or NULL: of all. */
static void print_options(const struct verb *v)
{
	printf("\n  --socket PATH     the daemon's socket (default $MOE_EXPERTD_SOCKET, else %s)\n",
	       MOE_SOCKET_DEFAULT);
	for (size_t i = 0; i < sizeof option_texts / sizeof *option_texts; i++)
		if (is_of(v, i))
			printf("  %s\n", option_texts[i].text);
	printf("  -h, --help        this text%s\n", v ? "" : "; VERB --help: about one verb, with examples");
}

static void print_help(void)
{
	printf("Usage: moectl [--socket PATH] VERB [OPTION]...\nShow and steer moe-expertd.\n\n");
	for (const struct verb *v = verbs; v->name; v++)
		printf("  %-36s %s\n", v->usage, v->help);
	print_options(NULL);
	printf("  --version         version and exit\n\n"
	       "Exit status: 0 done, 1 failed, 2 usage, 77 cannot run here (CPU).\n"
	       "Example: moectl stats --watch=2\n");
}

static void print_verb_help(const struct verb *v)
{
	printf("Usage: moectl [--socket PATH] %s%s\n%s\n", v->usage,
	       strchr(v->options ? v->options : "", 'j') ? " [--json]" : "", v->help);
	print_options(v);
	if (!v->example)
		return;
	printf("\nExamples:\n  ");
	for (const char *p = v->example; *p; p++)
		fputs(*p == '\n' ? "\n  " : (char[]){*p, '\0'}, stdout);
	printf("\nMore: man moectl\n");
}

static int usage(const char *text, const char *word)
{
	fprintf(stderr, "moectl: %s%s%s; see moectl --help\n", text, word ? ": " : "", word ? word : "");
	return EXIT_USAGE;
}

static const struct verb *find_verb(const char *name)
{
	for (const struct verb *v = verbs; v->name; v++)
		if (strcmp(name, v->name) == 0)
			return v;
	return NULL;
}

/* "unknown verb: stauts; is status meant?" */
static int unknown_verb(const char *name)
{
	const struct verb *near = verbs;

	for (const struct verb *v = verbs; v->name; v++)
		if (settings_distance(name, v->name) < settings_distance(name, near->name))
			near = v;
	if (settings_distance(name, near->name) > 2)
		return usage("unknown verb", name);
	fprintf(stderr, "moectl: unknown verb: %s; is %s meant? See moectl --help\n", name, near->name);
	return EXIT_USAGE;
}

static int run_verb(const struct arguments *arg)
{
	const struct verb *v = find_verb(arg->verb);

	if (!v)
		return unknown_verb(arg->verb);
	if (v->words >= 0 && arg->n != v->words)
		return usage("usage", v->usage);
	for (const char *given = arg->given; v->options && *given; given++)
		if (*given != 's' && !strchr(v->options, *given)) {
			fprintf(stderr, "moectl: %s does not take %s; see moectl %s --help\n", v->name,
				arguments_option(*given), v->name);
			return EXIT_USAGE;
		}
	return v->run(arg);
}

static int help(const char *name)
{
	const struct verb *v = name ? find_verb(name) : NULL;

	if (name && !v)
		return unknown_verb(name);
	if (v)
		print_verb_help(v);
	else
		print_help();
	return EXIT_DONE;
}

static int run(int argc, char **argv)
{
	struct arguments arg;

	switch (arguments_parse(&arg, argc, argv)) {
	case ARGUMENTS_HELP:
		return help(arg.verb);
	case ARGUMENTS_VERSION:
		printf("moectl %s\n", MOE_EXPERT_VERSION);
		return EXIT_DONE;
	case ARGUMENTS_WRONG:
		return usage(arg.wrong, arg.wrong_word);
	case ARGUMENTS_VERB:
		break;
	}
	return run_verb(&arg);
}

int main(int argc, char **argv)
{
	stdio_fill();
	signal(SIGPIPE, SIG_IGN);
	return stdout_end("moectl", run(argc, argv));
}
