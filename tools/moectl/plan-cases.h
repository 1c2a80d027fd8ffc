/* SPDX-License-Identifier: MIT */
/* plan-cases - moectl plan --case: cases as published vectors have them, each with its own loads, shape and maps. */
#ifndef TOOLS_PLAN_CASES_H
#define TOOLS_PLAN_CASES_H

#include "plan-job.h"

/* Of the file, one case or many, by the job's policy: what is shown. Without a policy its maps are looked at. */
int plan_cases(struct plan_job *job, const char *file, struct moe_error *err);

#endif
