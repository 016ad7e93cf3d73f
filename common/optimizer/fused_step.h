// One optimizer step over views of any length: the SIMD loop over what it can take whole, the rest
// through a padded copy, and the copy of the new weights for replies while they are in cache.
//
// Threading: pure function on memory nobody else touches. Allocates nothing.
#pragma once

#include "common/optimizer/optimizer.h"
#include "common/optimizer/update_kernels.h"

namespace slackline {

// As Optimizer::Step; `update` is FindUpdate() for the gradient's payload.
void RunFusedStep(UpdateFunction update, const ParameterView& parameters,
                  const GradientView& gradient, const UpdateConstants& constants);

}  // namespace slackline
