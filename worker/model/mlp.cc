// The multi-layer perceptron: linear layers with ReLU between them, for small images.
#include "worker/model/model_factories.h"
#include "worker/model/torch_model.h"

namespace slackline::worker {
namespace {

class Mlp final : public TorchModel {
 public:
  Mlp(const ModelConfig& config, const ModelOptions& options)
      : TorchModel(config, options), shape_(config.mlp) {}

  Result<std::string> Generate(const GenerateOptions&) override {
    return Err(Unimplemented("--mode=generate: expected a model of text, this one is an mlp"));
  }

 protected:
  Status CheckBatch(const Batch& batch) const override {
    const auto features = static_cast<size_t>(shape_.features);
    if (batch.samples == 0 || batch.pixels.size() != batch.samples * features ||
        batch.targets.size() != batch.samples) {
      return InvalidArgument("mlp: a batch of " + std::to_string(batch.samples) +
                             " samples: expected images of " + std::to_string(features) +
                             " pixels");
    }
    for (const int64_t label : batch.targets) {
      if (label < 0 || label >= shape_.classes) {
        return InvalidArgument("mlp: label " + std::to_string(label) + ": expected below " +
                               std::to_string(shape_.classes));
      }
    }
    return OkStatus();
  }

  at::Tensor ComputeLogits(const Batch& batch) override {
    at::Tensor x =
        at::from_blob(const_cast<float*>(batch.pixels.data()),
                      {static_cast<int64_t>(batch.samples), shape_.features}, at::kFloat);
    const size_t layers = parameters().size() / 2;
    for (size_t layer = 0; layer < layers; ++layer) {
      Need(2 * layer, 2 * layer + 2);
      x = at::linear(x, parameter(2 * layer), parameter(2 * layer + 1));
      if (layer + 1 < layers) x = at::relu(x);
    }
    return x;
  }

 private:
  const MlpConfig shape_;
};

}  // namespace

std::unique_ptr<Model> MakeMlp(const ModelConfig& config, const ModelOptions& options) {
  return std::make_unique<Mlp>(config, options);
}

}  // namespace slackline::worker
