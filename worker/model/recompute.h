// Gradient checkpointing: the backward of a part of the model keeps the part's input only and runs
// it again for the rest, which costs one more forward pass of it. (Chen et al., "Training Deep Nets
// with Sublinear Memory Cost", arXiv 1604.06174, section 4.)
// Threading: as the model.
#pragma once

#include <ATen/ATen.h>

#include <functional>

namespace slackline::worker {

using ModelPart = std::function<at::Tensor(const at::Tensor&)>;

// part(x), whose gradients are those of calling it, bit for bit if it is deterministic. Parameters
// that it uses are leaves: their gradients are added to where backward adds them. The part must
// live, and compute the same, until backward is done.
at::Tensor Recomputed(ModelPart part, const at::Tensor& x);

}  // namespace slackline::worker
