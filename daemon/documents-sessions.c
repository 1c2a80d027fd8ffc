/* SPDX-License-Identifier: MIT */
/* The document of the sessions: who they are and what they hold. */
#include "daemon/documents-internal.h"
#include "daemon/ringsrv.h"

#include <stdio.h>

#include "base/util.h"

static const char *const phase_names[] = {"none", "prefill", "decode"};
static const char *const op_names[MOE_OP_COUNT] = {"nop",  "fill",  "compute", "release",
						   "hint", "phase", "cancel",  "agree"};

json_t *session_json(const struct session *x)
{
	json_t *ops = json_object();
	char group[20], device[20];

	snprintf(group, sizeof group, "%llx", (unsigned long long)x->attach.group);
	snprintf(device, sizeof device, "%llx", (unsigned long long)x->attach.device);
	for (int i = 0; i < MOE_OP_COUNT; i++)
		json_object_set_new(ops, op_names[i], integer(x->ops[i]));
	return json_pack(
		"{s:I, s:i, s:I, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:s, s:b, s:b, s:I, s:i, s:i, s:I, s:I, "
		"s:I, s:I, s:I, s:I, "
		"s:I, s:I, s:i, s:s, s:o}",
		"id", (json_int_t)x->id, "pid", (int)x->pid, "uid", (json_int_t)x->uid, "model",
		x->entry->model->manifest->name, "group", group, "device", device, "tp_rank", (int)x->attach.tp_rank,
		"tp_size", (int)x->attach.tp_size, "dp_rank", (int)x->attach.dp_rank, "ep_rank", (int)x->attach.ep_rank,
		"attached_ns", (json_int_t)(now_ns() - x->attached_ns), "phase", phase_names[x->phase], "dummy",
		x->dummy, "tapped", x->tapped, "step", (json_int_t)x->step, "in_flight", (int)ringsrv_in_flight(x),
		"leases", (int)x->leases_held, "data_bytes", (json_int_t)x->arenas[MOE_ARENA_DATA].bytes, "slot_bytes",
		(json_int_t)x->arenas[MOE_ARENA_SLOTS].bytes, "device_bytes", (json_int_t)x->device_bytes,
		"charged_bytes", (json_int_t)x->charge.held[ACCOUNT_BYTES], "pool_ns", (json_int_t)x->pool_ns, "failed",
		(json_int_t)x->failed, "cancelled", (json_int_t)x->cancelled, "fill_bytes_running",
		(json_int_t)sched_filling(&x->sched), "dp_size", (int)x->attach.dp_size, "transport",
		x->attach.client ? "kmod" : "ring", "requests", ops);
}
