// The flags of slackline-worker that change the rule of the update, its rounds and its arithmetic.
// For worker_flags.cc only. Threading and errors: as there.
#pragma once

#include <string>

#include "common/flags.h"
#include "proto/control.pb.h"
#include "worker/trainer/trainer.h"

namespace slackline::worker {

// Their groups for --help.
FlagGroup UpdateFlagGroup();
FlagGroup PrecisionFlagGroup();

// Exits if one is wrong, alone or with the job's staleness (-1: async).
void CheckUpdateFlags(int32_t staleness);

// The codec that --precision stands for, where no codec flag is given.
const std::string& PrecisionCodec();
ModelOptions ComputeFromFlags();

// Takes the job's optimizer and schedule for the local ones where there are local steps, and fills
// in the servers' then; fills in the variants.
void FillUpdateRule(control::JobSpec* job);
// The same, for the trainer.
LocalStepOptions LocalStepsFromJob(const control::JobSpec& job);

}  // namespace slackline::worker
