// The status page and the summary, as JSON.
//
// status.json (and the StatusPage message):
//   phase, run_id, uptime_s, failed, reason (of the end), refused (messages)
//   job       {model, mode, staleness, steps, optimizer, learning_rate, ...} or null
//   expected  {servers, workers}
//   waiting_for  lines for people
//   progress  {step, steps, loss, tokens_per_s, bytes_pushed_per_s, bytes_pulled_per_s,
//              staleness_p50, staleness_max, eta_s}; absent numbers are null
//   workers   [{rank, incarnation, state, host, pid, connected, lease_s, first_clock, clock,
//               highest, loss, loss_scale, waiting_for}]
//   servers   [{id, host, pid, live, connected, lease_s, waiting_for}]
//   shards    [{shard, server, address, epoch, view_version, chunks, chunks_initialised, min_clock,
//               pushes, bytes_in, bytes_out, refused}]
//   epoch, view_version
//   data      {pass, position, leases_held, leases_returned}
//   checkpoint {directory, last, committed, failures, last_error, attempt {id, clock, phase,
//               awaited}}
#include <cmath>
#include <nlohmann/json.hpp>

#include "server/coordinator/coordinator_state.h"
#include "server/coordinator/limits.h"
#include "server/coordinator/text.h"

namespace slackline::server::coordinator {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

double ToSeconds(TimeNs duration) {
  return static_cast<double>(duration) / static_cast<double>(kNsPerSecond);
}

// A peer's strings may hold anything.
std::string Dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Null: the links are as fast as they are.
Json Throttle(const control::JobSpec& job) {
  return job.link_gbps() > 0 ? Json(job.link_gbps()) : Json(nullptr);
}

Json JobJson(const control::JobSpec& job) {
  return {{"model", job.model()},
          {"mode", ModeName(job.staleness())},
          {"staleness", job.staleness()},
          {"steps", job.steps()},
          {"deterministic", job.deterministic()},
          {"optimizer", job.optimizer().name()},
          {"schedule", job.schedule().name()},
          {"learning_rate", job.schedule().learning_rate()},
          {"push_codec", job.push_codec()},
          {"pull_codec", job.pull_codec()},
          {"chunk_bytes", job.chunk_bytes()},
          {"checkpoint_every", job.checkpoint_every()},
          {"local_steps", job.local_steps()},
          {"quorum", job.quorum()},
          {"throttled_to_gbps", Throttle(job)}};
}

void AddProcess(const Process& process, TimeNs now, Json* json) {
  (*json)["host"] = process.host;
  (*json)["pid"] = process.pid;
  (*json)["connected"] = process.connection != kNoConnection;
  (*json)["lease_s"] = process.live ? ToSeconds(process.lease_deadline_ns - now) : 0.0;
  (*json)["waiting_for"] = process.waiting_for;
}

Json ShardJson(size_t index, uint32_t server, const std::string& address,
               const control::ShardReport& report) {
  return {{"shard", index},
          {"server", server},
          {"address", address},
          {"epoch", report.epoch()},
          {"view_version", report.view_version()},
          {"chunks", report.chunks()},
          {"chunks_initialised", report.chunks_initialised()},
          {"min_clock", report.min_clock()},
          {"pushes", report.pushes()},
          {"bytes_in", report.bytes_in()},
          {"bytes_out", report.bytes_out()},
          {"refused", report.refused()}};
}

Json CheckpointJson(const std::string& directory, const Checkpoints& checkpoints) {
  static constexpr std::string_view kPhases[] = {"idle", "preparing", "writing", "committing"};
  Json json = {{"directory", directory},
               {"last", checkpoints.last_target()},
               {"committed", checkpoints.committed()},
               {"failures", checkpoints.failures()},
               {"last_error", checkpoints.last_error()},
               {"attempt", nullptr}};
  if (checkpoints.phase() != Checkpoints::Phase::kIdle) {
    json["attempt"] = {{"id", checkpoints.plan().id},
                       {"clock", checkpoints.plan().clock},
                       {"phase", kPhases[static_cast<size_t>(checkpoints.phase())]},
                       {"awaited", checkpoints.awaited()}};
  }
  return json;
}

std::string ListOf(const std::vector<uint32_t>& numbers) {
  std::string out;
  for (const uint32_t number : numbers) out += (out.empty() ? "" : ", ") + std::to_string(number);
  return out;
}

}  // namespace

std::vector<std::string> CoordinatorState::WaitingFor() const {
  std::vector<std::string> lines;
  if (phase_ == JobPhase::kGathering) {
    size_t live = 0;
    for (const ServerRecord& server : membership_.servers()) live += server.live ? 1 : 0;
    if (live < options_.expected_servers) {
      lines.push_back(Text(options_.expected_servers - live, " of ",
                           Plural(options_.expected_servers, "server"), " to register"));
    }
    std::vector<uint32_t> missing, undeclared;
    for (WorkerId rank = 0; rank < options_.expected_workers; ++rank) {
      const auto found = membership_.workers().find(rank);
      if (found == membership_.workers().end() || !found->second.live) missing.push_back(rank);
      if (found != membership_.workers().end() && found->second.state == WorkerState::kRegistered) {
        undeclared.push_back(rank);
      }
    }
    if (!missing.empty()) {
      lines.push_back(Text("worker ", ListOf(missing), " of ",
                           Plural(options_.expected_workers, "worker"), " to register"));
    }
    if (!undeclared.empty()) {
      lines.push_back(Text("worker ", ListOf(undeclared), " to declare the model"));
    }
  }
  if (Placed() && phase_ <= JobPhase::kFinishing && !ShardsAt(view_version_)) {
    std::vector<uint32_t> late;
    for (uint32_t i = 0; i < shards_.size(); ++i) {
      const control::ShardReport& report = shards_[i].report;
      if (report.epoch() != map_.epoch() || report.view_version() < view_version_) {
        late.push_back(i);
      }
    }
    lines.push_back(Text("shard ", ListOf(late), " to apply shard map ", map_.epoch(), " and view ",
                         view_version_));
  }
  if (phase_ == JobPhase::kRunning) {
    for (std::string& line : barriers_.Describe(membership_.Members())) {
      lines.push_back(std::move(line));
    }
    if (no_worker_since_ns_ != kNever) lines.push_back("a worker to replace those that are gone");
  }
  if (phase_ == JobPhase::kFinishing && !checkpoints_->awaited().empty()) {
    lines.push_back(
        Text("shard ", ListOf(checkpoints_->awaited()), " to write the final checkpoint"));
  }
  return lines;
}

std::string CoordinatorState::StatusJson(TimeNs now) const {
  Json page = {{"phase", JobPhaseName(phase_)},
               {"run_id", options_.run_id},
               {"uptime_s", ToSeconds(now - start_ns_)},
               {"failed", exit_code_ != 0},
               {"reason", end_reason_},
               {"refused", refusals_},
               {"job", job_ ? JobJson(*job_) : Json(nullptr)},
               {"expected",
                {{"servers", options_.expected_servers}, {"workers", options_.expected_workers}}},
               {"waiting_for", WaitingFor()}};

  const RunMetrics::Totals totals = metrics_.ComputeTotals();
  const RunMetrics::Rates rates = metrics_.RecentRates(now);
  double loss_sum = 0;
  int loss_count = 0;
  Json workers = Json::array();
  for (const auto& [rank, worker] : membership_.workers()) {
    const std::optional<double> loss = metrics_.LastLoss(rank);
    if (loss && worker.state != WorkerState::kVacant) {
      loss_sum += *loss;
      ++loss_count;
    }
    Json json = {{"rank", rank},
                 {"incarnation", worker.incarnation},
                 {"state", WorkerStateName(worker.state)},
                 {"first_clock", worker.first_clock},
                 {"clock", worker.clock},
                 {"highest", worker.highest_ever},
                 {"loss", OrNull(loss)},
                 {"loss_scale", worker.loss_scale}};
    AddProcess(worker, now, &json);
    workers.push_back(std::move(json));
  }
  // Shards know no slowest clock once the last member has left.
  const Clock slowest = membership_.Members().empty() ? metrics_.highest_clock() : SlowestClock();
  const Clock step = std::max(slowest + 1, map_.first_clock());
  const int64_t steps = job_ ? job_->steps() : 0;
  const double pace = metrics_.ClocksPerSecond();
  page["progress"] = {
      {"step", step},
      {"steps", steps},
      {"loss", loss_count > 0 ? Json(loss_sum / loss_count) : Json(nullptr)},
      {"tokens_per_s", rates.tokens_per_s},
      {"bytes_pushed_per_s", rates.bytes_pushed_per_s},
      {"bytes_pulled_per_s", rates.bytes_pulled_per_s},
      {"staleness_p50", OrNull(totals.staleness_p50)},
      {"staleness_max", OrNull(totals.staleness_max)},
      {"eta_s", pace > 0 ? Json(static_cast<double>(steps - step) / pace) : Json(nullptr)}};
  page["workers"] = std::move(workers);

  Json servers = Json::array();
  for (const ServerRecord& server : membership_.servers()) {
    Json json = {{"id", server.id}, {"live", server.live}};
    AddProcess(server, now, &json);
    servers.push_back(std::move(json));
  }
  page["servers"] = std::move(servers);
  Json shards = Json::array();
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards.push_back(ShardJson(i, shards_[i].server, map_.shard_addresses(static_cast<int>(i)),
                               shards_[i].report));
  }
  page["shards"] = std::move(shards);
  page["epoch"] = map_.epoch();
  page["view_version"] = view_version_;
  if (data_leases_) {
    page["data"] = {{"pass", data_leases_->pass()},
                    {"position", data_leases_->position()},
                    {"leases_held", data_leases_->held()},
                    {"leases_returned", data_leases_->returned()}};
  }
  page["checkpoint"] =
      checkpoints_ ? CheckpointJson(options_.checkpoint_directory, *checkpoints_) : Json(nullptr);
  return Dump(page, -1);
}

std::string CoordinatorState::SummaryJson() const {
  const RunMetrics::Totals totals = metrics_.ComputeTotals();
  const Json summary = {{"steps", totals.steps},
                        {"train_loss_first", OrNull(totals.loss_first)},
                        {"train_loss_last", OrNull(totals.loss_last)},
                        {"validation_loss", OrNull(final_.validation_loss)},
                        {"tokens_per_s", totals.tokens_per_s},
                        {"bytes_pushed", totals.bytes_pushed},
                        {"bytes_pulled", totals.bytes_pulled},
                        {"staleness_p50", OrNull(totals.staleness_p50)},
                        {"staleness_p99", OrNull(totals.staleness_p99)},
                        {"staleness_max", OrNull(totals.staleness_max)},
                        {"mode", ModeName(job_->staleness())},
                        {"seconds", totals.seconds},
                        {"empty_steps", totals.empty_steps},
                        {"model", job_->model()},
                        {"staleness_bound", job_->staleness()},
                        {"push_codec", job_->push_codec()},
                        {"pull_codec", job_->pull_codec()},
                        {"local_steps", job_->local_steps()},
                        {"quorum", job_->quorum()},
                        {"throttled_to_gbps", Throttle(*job_)},
                        {"servers", options_.expected_servers},
                        {"workers", options_.expected_workers},
                        {"checkpoint", checkpoints_->last_target()},
                        {"run_id", options_.run_id}};
  return Dump(summary, 2) + "\n";
}

}  // namespace slackline::server::coordinator
