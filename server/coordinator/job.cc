#include "server/coordinator/job.h"

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "server/coordinator/limits.h"
#include "server/coordinator/text.h"
#include "server/shard_job.h"

namespace slackline::server::coordinator {
namespace {

using control::JobSpec;

constexpr int64_t kMaxLocalSteps = 1 << 20;

std::string Number(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.9g", value);
  return buffer;
}

std::string YesNo(bool value) { return value ? "true" : "false"; }

std::string StalenessText(int32_t staleness) {
  return staleness < 0 ? std::string("async") : std::to_string(staleness);
}

// What a difference in a field means for a resumed job.
enum class OnResume : uint8_t { kMustMatch, kMayChange };

struct Field {
  std::string_view label;  // The flag, where the field has one.
  OnResume on_resume;
  std::function<std::string(const JobSpec&)> text;
};

// Every field of JobSpec but the model's configuration, which is compared key by key.
const std::vector<Field>& Fields() {
  constexpr auto kMust = OnResume::kMustMatch;
  constexpr auto kMay = OnResume::kMayChange;
  static const std::vector<Field> fields = {
      {"--model", kMust, [](const JobSpec& j) { return Printable(j.model()); }},
      {"--steps", kMay, [](const JobSpec& j) { return std::to_string(j.steps()); }},
      {"--staleness", kMay, [](const JobSpec& j) { return StalenessText(j.staleness()); }},
      {"--deterministic", kMay, [](const JobSpec& j) { return YesNo(j.deterministic()); }},
      {"--async_scale", kMay,
       [](const JobSpec& j) { return std::string(j.async_scale_sum() ? "sum" : "mean"); }},
      {"--seed", kMay, [](const JobSpec& j) { return std::to_string(j.seed()); }},
      {"--optimizer", kMust, [](const JobSpec& j) { return Printable(j.optimizer().name()); }},
      {"--momentum", kMay, [](const JobSpec& j) { return Number(j.optimizer().momentum()); }},
      {"--beta1", kMay, [](const JobSpec& j) { return Number(j.optimizer().beta1()); }},
      {"--beta2", kMay, [](const JobSpec& j) { return Number(j.optimizer().beta2()); }},
      {"--epsilon", kMay, [](const JobSpec& j) { return Number(j.optimizer().epsilon()); }},
      {"--nesterov_period", kMay,
       [](const JobSpec& j) { return std::to_string(j.optimizer().period()); }},
      {"--nesterov_activation", kMay,
       [](const JobSpec& j) { return Number(j.optimizer().activation()); }},
      {"--local_steps", kMay, [](const JobSpec& j) { return std::to_string(j.local_steps()); }},
      {"the local optimizer", kMay,
       [](const JobSpec& j) { return j.local_optimizer().ShortDebugString(); }},
      {"the local schedule", kMay,
       [](const JobSpec& j) { return j.local_schedule().ShortDebugString(); }},
      {"--quorum", kMay, [](const JobSpec& j) { return std::to_string(j.quorum()); }},
      {"--grace_ms", kMay, [](const JobSpec& j) { return std::to_string(j.grace_ms()); }},
      {"--staleness_rate", kMay, [](const JobSpec& j) { return YesNo(j.staleness_rate()); }},
      {"--delay_compensation", kMay,
       [](const JobSpec& j) { return Number(j.delay_compensation()); }},
      {"--link_gbps", kMay, [](const JobSpec& j) { return Number(j.link_gbps()); }},
      {"--weight_decay", kMay,
       [](const JobSpec& j) { return Number(j.optimizer().weight_decay()); }},
      {"--schedule", kMay, [](const JobSpec& j) { return Printable(j.schedule().name()); }},
      {"--learning_rate", kMay,
       [](const JobSpec& j) { return Number(j.schedule().learning_rate()); }},
      {"--warmup_steps", kMay,
       [](const JobSpec& j) { return std::to_string(j.schedule().warmup_steps()); }},
      {"the schedule's total steps", kMay,
       [](const JobSpec& j) { return std::to_string(j.schedule().total_steps()); }},
      {"the schedule's final fraction", kMay,
       [](const JobSpec& j) { return Number(j.schedule().final_fraction()); }},
      {"the schedule's step interval", kMay,
       [](const JobSpec& j) { return std::to_string(j.schedule().step_every()); }},
      {"the schedule's step factor", kMay,
       [](const JobSpec& j) { return Number(j.schedule().step_factor()); }},
      {"--push_codec", kMay, [](const JobSpec& j) { return Printable(j.push_codec()); }},
      {"--pull_codec", kMay, [](const JobSpec& j) { return Printable(j.pull_codec()); }},
      {"--codec_block", kMay, [](const JobSpec& j) { return std::to_string(j.codec_block()); }},
      {"--codec_rounding", kMay,
       [](const JobSpec& j) {
         return std::string(j.codec_stochastic() ? "stochastic" : "nearest");
       }},
      {"--topk_values", kMay,
       [](const JobSpec& j) { return std::string(j.topk_int8_values() ? "int8" : "fp16"); }},
      {"--topk_fraction", kMay, [](const JobSpec& j) { return Number(j.topk_fraction()); }},
      {"--topk_warmup_steps", kMay,
       [](const JobSpec& j) { return std::to_string(j.topk_warmup_steps()); }},
      {"--codec_min_elements", kMay,
       [](const JobSpec& j) { return std::to_string(j.codec_min_elements()); }},
      {"--chunk_bytes", kMust, [](const JobSpec& j) { return std::to_string(j.chunk_bytes()); }},
      {"--checkpoint_every", kMay,
       [](const JobSpec& j) { return std::to_string(j.checkpoint_every()); }},
      {"the data's number of samples", kMay,
       [](const JobSpec& j) { return std::to_string(j.train_samples()); }},
      {"the samples in a data lease", kMay,
       [](const JobSpec& j) { return std::to_string(j.lease_samples()); }},
      {"the data's fingerprint", kMay,
       [](const JobSpec& j) { return Printable(j.data_fingerprint()); }},
  };
  return fields;
}

Status CheckNumber(std::string_view label, double value, double low, double high) {
  if (std::isfinite(value) && value >= low && value <= high) return OkStatus();
  return InvalidArgument(Text(label, '=', Number(value), ": expected a number in [", Number(low),
                              ", ", Number(high), "]"));
}

Status CheckCount(std::string_view label, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgument(Text(label, '=', value, ": expected ", low, "..", high));
}

Status CheckText(std::string_view label, const std::string& value, size_t low, size_t high) {
  if (value.size() >= low && value.size() <= high) return OkStatus();
  return InvalidArgument(
      Text(label, ": expected ", low, "..", high, " bytes, found ", value.size()));
}

// Wide ranges: only absurd values are refused here. What an optimizer or a schedule makes of them
// is checked where they are built (SlotNames below).
Status CheckNumbers(const control::Optimizer& optimizer, const control::Schedule& schedule) {
  SLACKLINE_RETURN_IF_ERROR(CheckNumber("--momentum", optimizer.momentum(), 0, 1));
  SLACKLINE_RETURN_IF_ERROR(CheckNumber("--beta1", optimizer.beta1(), 0, 1));
  SLACKLINE_RETURN_IF_ERROR(CheckNumber("--beta2", optimizer.beta2(), 0, 1));
  SLACKLINE_RETURN_IF_ERROR(CheckNumber("--epsilon", optimizer.epsilon(), 0, 1));
  SLACKLINE_RETURN_IF_ERROR(CheckNumber("--weight_decay", optimizer.weight_decay(), 0, 1e6));
  SLACKLINE_RETURN_IF_ERROR(CheckNumber("--learning_rate", schedule.learning_rate(), 0, 1e6));
  SLACKLINE_RETURN_IF_ERROR(CheckCount("--warmup_steps", schedule.warmup_steps(), 0, kMaxSteps));
  SLACKLINE_RETURN_IF_ERROR(
      CheckCount("the schedule's total steps", schedule.total_steps(), 0, kMaxSteps));
  SLACKLINE_RETURN_IF_ERROR(
      CheckNumber("the schedule's final fraction", schedule.final_fraction(), 0, 1));
  SLACKLINE_RETURN_IF_ERROR(
      CheckCount("the schedule's step interval", schedule.step_every(), 0, kMaxSteps));
  return CheckNumber("the schedule's step factor", schedule.step_factor(), 0, 1e3);
}

// Any model's configuration nests less. What nests deeper is not looked into, since comparing and
// printing take stack for each level.
constexpr int kMaxConfigDepth = 16;

// Discarded if it is not JSON or nests too deep.
nlohmann::json ParseConfig(const std::string& text) {
  bool too_deep = false;
  const auto on_event = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > kMaxConfigDepth;
    return !too_deep;
  };
  auto json = nlohmann::json::parse(text, on_event, /*allow_exceptions=*/false);
  return too_deep ? nlohmann::json(nlohmann::json::value_t::discarded) : json;
}

// Names the first key of two JSON objects that differs, or shows both texts.
Status CompareConfigs(const std::string& holder, const std::string& job, std::string_view who,
                      const std::string& offered) {
  if (job == offered) return OkStatus();
  const nlohmann::json expected = ParseConfig(job);
  const nlohmann::json found = ParseConfig(offered);
  if (expected.is_object() && found.is_object()) {
    if (expected == found) return OkStatus();
    const auto text = [](const nlohmann::json& value) {
      return Printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    };
    nlohmann::json both = expected;
    both.update(found);
    for (const auto& [key, unused] : both.items()) {
      const std::string mine = expected.contains(key) ? text(expected.at(key)) : "nothing";
      const std::string theirs = found.contains(key) ? text(found.at(key)) : "nothing";
      if (mine == theirs) continue;
      return InvalidArgument(Text("the model's configuration, ", Printable(key), ": ", who, " has ",
                                  theirs, ", ", holder, " has ", mine));
    }
  }
  return InvalidArgument(Text("the model's configuration: ", who, " has ", Printable(offered), ", ",
                              holder, " has ", Printable(job)));
}

std::string Shape(const control::TensorSpec& tensor) {
  std::string out = "[";
  for (int i = 0; i < tensor.shape_size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(tensor.shape(i));
  }
  return out + "]";
}

std::string TensorText(const control::TensorSpec& tensor) {
  return Text('\'', Printable(tensor.name()), "' ", Shape(tensor),
              tensor.decay() ? "" : " without decay");
}

Status CheckTensor(int index, const control::TensorSpec& tensor, uint64_t* total) {
  const std::string where = Text("tensor ", index, " ('", Printable(tensor.name()), "')");
  if (tensor.name().empty() || tensor.name().size() > kMaxNameBytes) {
    return InvalidArgument(Text(where, ": expected a name of 1..", kMaxNameBytes, " bytes"));
  }
  if (tensor.shape_size() > kMaxTensorRank) {
    return InvalidArgument(
        Text(where, ": ", tensor.shape_size(), " extents, at most ", kMaxTensorRank));
  }
  uint64_t count = 1;
  for (const int64_t extent : tensor.shape()) {
    if (extent <= 0 || static_cast<uint64_t>(extent) > kMaxElements / count) {
      return InvalidArgument(Text(where, ": the shape ", Shape(tensor),
                                  " needs extents above 0 and at most ", kMaxElements,
                                  " elements in all"));
    }
    count *= static_cast<uint64_t>(extent);
  }
  *total += count;
  if (*total > kMaxElements) {
    return InvalidArgument(Text(where, ": the model exceeds ", kMaxElements, " elements"));
  }
  return OkStatus();
}

}  // namespace

Status CheckJob(const control::JobSpec& job) {
  SLACKLINE_RETURN_IF_ERROR(CheckText("--model", job.model(), 1, kMaxNameBytes));
  SLACKLINE_RETURN_IF_ERROR(
      CheckText("the model's configuration", job.model_config_json(), 0, kMaxModelConfigBytes));
  SLACKLINE_RETURN_IF_ERROR(CheckCount("--steps", job.steps(), 1, kMaxSteps));
  SLACKLINE_RETURN_IF_ERROR(CheckCount("--staleness", job.staleness(), -1, kMaxStaleness));
  SLACKLINE_RETURN_IF_ERROR(CheckNumbers(job.optimizer(), job.schedule()));
  SLACKLINE_RETURN_IF_ERROR(
      CheckCount("--chunk_bytes", job.chunk_bytes(), kMinChunkBytes, kMaxChunkBytes));
  if (job.chunk_bytes() % sizeof(float) != 0) {
    return InvalidArgument(
        Text("--chunk_bytes=", job.chunk_bytes(), ": expected a multiple of ", sizeof(float)));
  }
  SLACKLINE_RETURN_IF_ERROR(CheckCount("--local_steps", job.local_steps(), 0, kMaxLocalSteps));
  if (job.local_steps() > 0) {
    SLACKLINE_RETURN_IF_ERROR(CheckNumbers(job.local_optimizer(), job.local_schedule()));
  }
  SLACKLINE_RETURN_IF_ERROR(CheckNumber("--link_gbps", job.link_gbps(), 0, 1e6));
  SLACKLINE_RETURN_IF_ERROR(CheckCount("--checkpoint_every", job.checkpoint_every(), 0, kMaxSteps));
  SLACKLINE_RETURN_IF_ERROR(
      CheckCount("--topk_warmup_steps", job.topk_warmup_steps(), 0, kMaxSteps));
  if (job.train_samples() > static_cast<uint64_t>(INT64_MAX)) {
    return InvalidArgument(
        Text("the data's number of samples: ", job.train_samples(), " exceeds ", INT64_MAX));
  }
  SLACKLINE_RETURN_IF_ERROR(
      CheckText("the data's fingerprint", job.data_fingerprint(), 0, kMaxNameBytes));
  for (const std::string* name :
       {&job.optimizer().name(), &job.schedule().name(), &job.push_codec(), &job.pull_codec()}) {
    SLACKLINE_RETURN_IF_ERROR(
        CheckText("the name of an optimizer, schedule or codec", *name, 0, kMaxNameBytes));
  }
  // What every shard will make of it: better refused now than by all of them later.
  const Result<std::vector<std::string>> slots = SlotNames(job);
  return slots ? OkStatus() : slots.error();
}

Status CompareJobs(const control::JobSpec& job, std::string_view who,
                   const control::JobSpec& offered) {
  for (const Field& field : Fields()) {
    const std::string mine = field.text(job);
    const std::string theirs = field.text(offered);
    if (mine == theirs) continue;
    return InvalidArgument(Text(field.label, ": ", who, " has ", theirs, ", the job has ", mine));
  }
  return CompareConfigs("the job", job.model_config_json(), who, offered.model_config_json());
}

Result<std::vector<std::string>> CompareForResume(const control::JobSpec& saved,
                                                  const control::JobSpec& job) {
  std::vector<std::string> changes;
  for (const Field& field : Fields()) {
    const std::string before = field.text(saved);
    const std::string after = field.text(job);
    if (before == after) continue;
    if (field.on_resume == OnResume::kMustMatch) {
      return Err(InvalidArgument(
          Text(field.label, ": the job has ", after, ", the checkpoint has ", before)));
    }
    changes.push_back(Text(field.label, " was ", before, ", is ", after));
  }
  SLACKLINE_RETURN_ERR_IF_ERROR(CompareConfigs("the checkpoint", saved.model_config_json(),
                                               "the job", job.model_config_json()));
  return changes;
}

Status CheckTensors(const Tensors& tensors) {
  if (tensors.empty() || static_cast<size_t>(tensors.size()) > kMaxTensors) {
    return InvalidArgument(
        Text("the model declares ", tensors.size(), " tensors: expected 1..", kMaxTensors));
  }
  std::set<std::string_view> names;
  uint64_t total = 0;
  for (int i = 0; i < tensors.size(); ++i) {
    SLACKLINE_RETURN_IF_ERROR(CheckTensor(i, tensors[i], &total));
    if (!names.insert(tensors[i].name()).second) {
      return InvalidArgument(
          Text("tensor ", i, ": the name '", Printable(tensors[i].name()), "' appears twice"));
    }
  }
  return OkStatus();
}

Status CompareTensors(const Tensors& model, std::string_view holder, std::string_view who,
                      const Tensors& offered) {
  for (int i = 0; i < std::min(model.size(), offered.size()); ++i) {
    const std::string mine = TensorText(model[i]);
    const std::string theirs = TensorText(offered[i]);
    if (model[i].name() == offered[i].name() && mine == theirs) continue;
    return InvalidArgument(
        Text("tensor ", i, ": ", who, " declares ", theirs, ", ", holder, " has ", mine));
  }
  if (model.size() == offered.size()) return OkStatus();
  return InvalidArgument(Text(who, " declares ",
                              Plural(static_cast<uint64_t>(offered.size()), "tensor"), ", ", holder,
                              " has ", model.size()));
}

uint64_t ElementCount(const control::TensorSpec& tensor) {
  uint64_t count = 1;
  for (const int64_t extent : tensor.shape()) count *= static_cast<uint64_t>(extent);
  return count;
}

bool HasExactRounds(const control::JobSpec& job) {
  return job.staleness() == 0 && job.quorum() == 0;
}

std::string_view ModeName(int32_t staleness) {
  return staleness < 0 ? "asp" : staleness == 0 ? "bsp" : "ssp";
}

}  // namespace slackline::server::coordinator
