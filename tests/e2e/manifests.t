#!/bin/sh
# SPDX-License-Identifier: MIT
#
# manifests - the recipe of the container image, its seccomp profile and the Kubernetes manifests agree with each other and
# with the programs. Nothing here runs on a cluster.
# shellcheck source=tests/e2e/lib.sh
. "$(dirname -- "$0")/lib.sh"

recipe=packaging/container/Containerfile
profile=packaging/container/seccomp.json
python3 -c 'import yaml' 2>/dev/null || skip_all 'python3-yaml is not installed'

python3 - docs/kubernetes/*.yaml >"$dir/all.json" 2>"$dir/err" <<'END_PYTHON'
import json, sys, yaml
print(json.dumps([d for f in sys.argv[1:] for d in yaml.safe_load_all(open(f))]))
END_PYTHON
require $? 'the manifests are YAML' "$dir/err"

# -- the manifests themselves -------------------------------------------------------------------------------------

python3 - "$dir/all.json" "$profile" "$recipe" >"$dir/words" 2>"$dir/wrong" <<'END_PYTHON'
import json, re, sys
documents = json.load(open(sys.argv[1]))
names = {n for s in json.load(open(sys.argv[2]))["syscalls"] if s["action"] == "SCMP_ACT_ALLOW" for n in s["names"]}
recipe = open(sys.argv[3]).read()
uid = int(re.search(r"useradd .*--uid (\d+)", recipe)[1])
bad = []
def hold(true, words):
    if not true:
        bad.append(words)

hold([d["kind"] for d in documents] == ["Namespace", "ConfigMap", "DaemonSet", "Pod"], "kinds")
for d in documents:
    where = d["kind"]
    hold(set(d) <= {"apiVersion", "kind", "metadata", "spec", "data"}, where + ": keys")
    hold(d["apiVersion"] == ("apps/v1" if where == "DaemonSet" else "v1"), where + ": apiVersion")
    hold(where == "Namespace" or d["metadata"].get("namespace") == "moe-expertd", where + ": namespace")
daemon = next(d for d in documents if d["kind"] == "DaemonSet")
config = next(d for d in documents if d["kind"] == "ConfigMap")
worker = next(d for d in documents if d["kind"] == "Pod")
hold(daemon["spec"]["selector"]["matchLabels"] == daemon["spec"]["template"]["metadata"]["labels"], "selector")
for where, spec in (("DaemonSet", daemon["spec"]["template"]["spec"]), ("Pod", worker["spec"])):
    volumes = {v["name"]: v for v in spec["volumes"]}
    for c in spec["containers"] + spec.get("initContainers", []):
        at = where + ": " + c["name"]
        hold({m["name"] for m in c["volumeMounts"]} <= set(volumes), at + ": a mount without its volume")
        hold(c["securityContext"]["allowPrivilegeEscalation"] is False, at + ": escalation")
        hold(c["securityContext"]["capabilities"]["drop"] == ["ALL"], at + ": capabilities")
        requests, limits = c["resources"]["requests"], c["resources"]["limits"]
        for key in set(requests) | set(limits):
            if key.startswith("hugepages-"):
                hold(requests.get(key) == limits.get(key), at + ": huge pages: requests are limits")
                hold("memory" in limits and "cpu" in limits, at + ": huge pages need memory and cpu")
    hold(volumes["run"]["hostPath"]["path"] == "/run/moe-expertd", where + ": the socket's folder")
pod = daemon["spec"]["template"]["spec"]
# Guaranteed is a pod of which each container is: only then its whole CPUs are its own.
for c in pod["containers"] + pod["initContainers"]:
    hold(c["resources"]["requests"] == c["resources"]["limits"], c["name"] + ": requests are limits")
    hold({"cpu", "memory"} <= set(c["resources"]["limits"]), c["name"] + ": cpu and memory")
main = pod["containers"][0]
hold(str(main["resources"]["limits"]["cpu"]).isdigit(), "whole CPUs")
hold(pod["securityContext"]["runAsUser"] == uid, "the daemon's user is that of the image")
hold(uid in worker["spec"]["securityContext"]["supplementalGroups"], "the worker has the socket's group")
hold(pod["securityContext"]["seccompProfile"]["type"] == "Localhost", "a seccomp profile of its own")
hold(pod["terminationGracePeriodSeconds"] > 30, "the keeper's 30 s")
hold(any(k.startswith("hugepages-") for k in main["resources"]["limits"]), "huge pages")
for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
    hold("moectl status" in " ".join(main[probe]["exec"]["command"]).replace("/usr/bin/", ""), probe)
hold(any(m["mountPath"] == "/tmp" for m in main["volumeMounts"]), "a folder for the keeper's socket")
mounts = {m["mountPath"]: m["name"] for m in main["volumeMounts"]}
folder, file = main["args"][main["args"].index("--config") + 1].rsplit("/", 1)
hold(mounts.get(folder) == "config" and file in config["data"], "its configuration is mounted where --config says")
for call in "io_uring_setup io_uring_enter io_uring_register mbind set_mempolicy get_mempolicy move_pages memfd_create mlock " \
    "sched_setaffinity sched_setscheduler futex eventfd2 recvmsg sendmsg execve clone3 setgroups setuid setgid capset".split():
    hold(call in names, "seccomp.json does not allow " + call)
for call in "ptrace mount bpf kexec_load init_module keyctl userfaultfd unshare reboot".split():
    hold(call not in names, "seccomp.json allows " + call)
for words in bad:
    print(words, file=sys.stderr)
print(" ".join(a for a in main["args"] + ["--keep"] if a.startswith("--")))
print(" ".join(a for a in worker["spec"]["containers"][0]["args"] if a.startswith("--")))
open(sys.argv[1] + ".conf", "w").write(config["data"]["expertd.conf"])
sys.exit(bool(bad))
END_PYTHON
ok $? 'they agree with each other, with the image and with the profile' "$dir/wrong"

# -- against the programs -----------------------------------------------------------------------------------------

# knows NAME OPTION...: its help has them.
knows() {
	name=$1
	shift
	for option in "$@"; do
		grep -q -e "$option\>" "$dir/help" || echo "$name does not know $option"
	done >"$dir/unknown"
	[ -s "$dir/help" ] && [ ! -s "$dir/unknown" ]
	ok $? "$name knows the options that it is given" "$dir/unknown"
}
"$expertd" --help >"$dir/help"
# Word splitting is meant.
# shellcheck disable=SC2046
knows moe-expertd $(sed -n 1p "$dir/words")
"$worker" --help >"$dir/help" 2>&1
# shellcheck disable=SC2046
knows moe-worker $(sed -n 2p "$dir/words")
"$moectl" config --config "$dir/all.json.conf" >"$dir/out" 2>&1
is $? 0 'the configuration is right' "$dir/out"
! grep -q -i 'unknown' "$dir/out"
ok $? 'and known' "$dir/out"

start_daemon --model "$sample"
require $? 'a daemon starts' "$dir/daemon.log"
"$moectl" --socket "$socket" status --json >"$dir/status.json" && grep -q '"state": "ready"' "$dir/status.json"
ok $? 'the words that the probe at the start looks for are those of a daemon that is ready' "$dir/status.json"
stop_daemon
ok $? 'it ends'

# -- the recipe ---------------------------------------------------------------------------------------------------

for word in $(sed -n 's/^COPY --from=build //p' $recipe | tr ' ' '\n' | sed -n 's,^/debs/\([a-z0-9-]*\)_.*,\1,p'); do
	grep -qx "Package: $word" debian/control
	ok $? "the image takes the package $word, which there is"
done
grep -qx 'USER 990:990' $recipe && grep -qx 'ENTRYPOINT \["/usr/bin/moe-expertd", "--keep"\]' $recipe
ok $? 'the image runs the daemon under its keeper, and not as root'
finish
