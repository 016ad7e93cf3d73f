// slackline-worker: trains, evaluates or samples a gpt or an mlp.
#include <glog/logging.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "common/flags.h"
#include "common/mutex.h"
#include "worker/trainer/stop_signals.h"
#include "worker/trainer/trained_model.h"
#include "worker/trainer/trainer.h"
#include "worker/worker_flags.h"

namespace slackline::worker {
namespace {

// From the first SIGTERM, for the step under way and the goodbye.
constexpr TimeNs kStopGraceNs = 20 * kNsPerSecond;

// What a signal may find: nothing yet, a client that starts, or a trainer that trains.
struct Running {
  Mutex mutex;
  Client* client SLACKLINE_GUARDED_BY(mutex) = nullptr;
  const Trainer* trainer SLACKLINE_GUARDED_BY(mutex) = nullptr;
  std::atomic<bool> stop{false};

  void Set(Client* new_client, const Trainer* new_trainer) {
    MutexLock lock(mutex);
    client = new_client;
    trainer = new_trainer;
  }
  void OnSignal(bool give_up) {
    MutexLock lock(mutex);
    stop.store(true, std::memory_order_relaxed);
    if (client == nullptr) std::_Exit(1);  // Nothing has begun.
    if (give_up || trainer == nullptr || !trainer->training()) {
      client->Cancel("stopped by a signal");
    }
  }
};

Status Train(const ProcessFlags& flags) {
  Running running;
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const auto signals,
                                    StopSignals::Create(
                                        kStopGraceNs, [&running] { running.OnSignal(false); },
                                        [&running] { running.OnSignal(true); }));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const auto data, OpenTrainingData(flags.data));
  const ModelConfig model = ModelFromFlags(data->manifest.shape);
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(
      const BatchBuilder samples,
      BatchBuilder::Create(data->train, static_cast<size_t>(model.gpt.context), flags.seed, true));
  const control::JobSpec job = JobFromFlags(model, data->manifest, samples.samples());
  const TrainerOptions options = TrainerFromFlags(model, job);
  const ClientOptions client_options = ClientFromFlags(job);
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const std::unique_ptr<Client> client,
                                    Client::Connect(client_options));
  LOG(INFO) << "worker " << client->rank() << " (life " << client->incarnation() << ") of run "
            << client->run_id();
  Trainer trainer(options, *data, *client, running.stop);
  running.Set(client.get(), &trainer);
  Status status = trainer.Run();
  running.Set(nullptr, nullptr);
  return status;
}

// The model of --checkpoint, bound to its own weights.
struct Loaded {
  TrainedModel trained;
  std::unique_ptr<Model> model;
};

Result<std::unique_ptr<Loaded>> Load(const ProcessFlags& flags) {
  auto loaded = std::make_unique<Loaded>();
  SLACKLINE_ASSIGN_OR_RETURN(loaded->trained, ReadTrainedModel(flags.checkpoint));
  const auto kind = ModelKindName(loaded->trained.config.kind);
  if (!flags.wanted_model.empty() && flags.wanted_model != kind) {
    return Err(InvalidArgument(loaded->trained.source +
                               ": a checkpoint of another model: it is of " + std::string(kind) +
                               ", --model says " + flags.wanted_model));
  }
  loaded->model = Model::Create(loaded->trained.config);
  SLACKLINE_RETURN_ERR_IF_ERROR(loaded->model->Bind(loaded->trained.weights, {}));
  return loaded;
}

Status Evaluate(const ProcessFlags& flags) {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const auto loaded, Load(flags));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const DataManifest manifest, ReadManifest(flags.data));
  const ModelConfig& config = loaded->trained.config;
  if ((config.kind == ModelConfig::Kind::kGpt) != (manifest.shape.kind == DataKind::kText)) {
    return InvalidArgument(flags.data + " does not fit " + loaded->trained.source +
                           ", a model of kind " + std::string(ModelKindName(config.kind)) +
                           ": expected text for gpt, images for mlp");
  }
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const Dataset data,
                                    Dataset::Open(flags.data, manifest, "validation"));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(
      const BatchBuilder builder,
      BatchBuilder::Create(data, static_cast<size_t>(config.gpt.context), 0, false));
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const EvaluationResult result,
                                    EvaluateModel(*loaded->model, builder, flags.evaluate_samples));
  std::printf("%s: validation loss %.4f, accuracy %.4f, over %llu samples\n",
              loaded->trained.source.c_str(), result.loss, result.accuracy,
              static_cast<unsigned long long>(result.samples));
  return OkStatus();
}

Status Generate(const ProcessFlags& flags) {
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const auto loaded, Load(flags));
  const GenerateOptions options = GenerateFromFlags();
  SLACKLINE_ASSIGN_OR_RETURN_STATUS(const std::string text, loaded->model->Generate(options));
  std::printf("%s\n", ToValidUtf8(options.prompt + text).c_str());
  return OkStatus();
}

Status Run(const ProcessFlags& flags) {
  ConfigureTensorLibrary(flags.threads, flags.deterministic);
  switch (ModeFromFlags()) {
    case Mode::kTrain:
      return Train(flags);
    case Mode::kEvaluate:
      return Evaluate(flags);
    case Mode::kGenerate:
      return Generate(flags);
  }
  return Internal("no such mode");
}

}  // namespace
}  // namespace slackline::worker

int main(int argc, char** argv) {
  slackline::worker::ParseWorkerFlags(argc, argv);
  slackline::InitLogging(argv[0]);
  // Writing to a peer that has gone is an error code, not a signal.
  std::signal(SIGPIPE, SIG_IGN);
  const slackline::Status status = slackline::worker::Run(slackline::worker::ProcessFromFlags());
  if (status.ok()) return 0;
  std::fprintf(stderr, "slackline-worker: %s\n", status.message().c_str());
  return 1;
}
