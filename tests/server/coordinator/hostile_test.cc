// What peers may send to harm: absurd numbers, wrong order, wrong role, random messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/random.h"
#include "server/coordinator/limits.h"
#include "tests/server/coordinator/cluster.h"
#include "transport/control/control_channel.h"

namespace slackline::server::coordinator {
namespace {

using testing::HasSubstr;

CoordinatorOptions Options(uint32_t servers, uint32_t workers) {
  CoordinatorOptions options;
  options.expected_servers = servers;
  options.expected_workers = workers;
  return options;
}

TEST(Hostile, JobsOutOfRangeAreRefused) {
  struct Case {
    const char* message;
    void (*spoil)(control::JobSpec*);
  };
  const Case cases[] = {
      {"--model", [](control::JobSpec* j) { j->clear_model(); }},
      {"--steps=0", [](control::JobSpec* j) { j->set_steps(0); }},
      {"--steps", [](control::JobSpec* j) { j->set_steps(INT64_MAX); }},
      {"--staleness=-2", [](control::JobSpec* j) { j->set_staleness(-2); }},
      {"magic", [](control::JobSpec* j) { j->mutable_optimizer()->set_name("magic"); }},
      {"--momentum=nan",
       [](control::JobSpec* j) { j->mutable_optimizer()->set_momentum(std::nan("")); }},
      {"--learning_rate=inf",
       [](control::JobSpec* j) {
         j->mutable_schedule()->set_learning_rate(std::numeric_limits<double>::infinity());
       }},
      {"push_codec: codec 'zip'", [](control::JobSpec* j) { j->set_push_codec("zip"); }},
      {"--chunk_bytes=0", [](control::JobSpec* j) { j->set_chunk_bytes(0); }},
      {"--chunk_bytes=1026", [](control::JobSpec* j) { j->set_chunk_bytes(1026); }},
      {"--chunk_bytes", [](control::JobSpec* j) { j->set_chunk_bytes(UINT32_MAX); }},
      {"--checkpoint_every=-1", [](control::JobSpec* j) { j->set_checkpoint_every(-1); }},
      {"configuration",
       [](control::JobSpec* j) { j->set_model_config_json(std::string(2 << 20, 'x')); }},
      {"samples", [](control::JobSpec* j) { j->set_train_samples(UINT64_MAX); }},
  };
  for (const Case& c : cases) {
    Cluster cluster(Options(1, 1));
    control::JobSpec job = SmallJob();
    c.spoil(&job);
    const Cluster::Peer& worker = cluster.AddWorker("w", -1, job);
    ASSERT_NE(worker.error(), nullptr) << c.message;
    EXPECT_THAT(worker.error()->message(), HasSubstr(c.message));
    EXPECT_TRUE(cluster.state->membership().workers().empty()) << "it took no rank";
  }
}

// Deep enough to use up the stack of anything that compares or prints the value.
TEST(Hostile, AConfigurationThatNestsWithoutEndIsRefused) {
  Cluster cluster(Options(1, 2));
  control::JobSpec job = SmallJob();
  job.set_model_config_json("{\"layers\": 2}");
  EXPECT_EQ(cluster.AddWorker("first", -1, job).error(), nullptr);
  const size_t depth = kMaxModelConfigBytes / 2 - 100;
  job.set_model_config_json("{\"layers\": " + std::string(depth, '[') + std::string(depth, ']') +
                            "}");
  const Cluster::Peer& second = cluster.AddWorker("second", -1, job);
  ASSERT_NE(second.error(), nullptr);
  EXPECT_THAT(second.error()->message(), HasSubstr("configuration"));
}

TEST(Hostile, ModelsOutOfRangeAreRefused) {
  Cluster cluster(Options(1, 1));
  Cluster::Peer& worker = cluster.AddWorker("w");
  const auto refused = [&](const Tensors& tensors) {
    const auto answer = cluster.Declare(worker, tensors);
    return answer && answer->has_error();
  };
  EXPECT_TRUE(refused({})) << "no tensors";
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{0},
                                            {-1},
                                            {INT64_MAX},
                                            {INT64_MAX, INT64_MAX, INT64_MAX},
                                            {int64_t{1} << 32, int64_t{1} << 32},
                                            {1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
    Tensors tensors;
    *tensors.Add() = Tensor("w", shape);
    EXPECT_TRUE(refused(tensors)) << testing::PrintToString(shape);
  }
  Tensors twice;
  *twice.Add() = Tensor("w", {1});
  *twice.Add() = Tensor("w", {1});
  EXPECT_TRUE(refused(twice));
  Tensors long_name;
  *long_name.Add() = Tensor(std::string(kMaxNameBytes + 1, 'w'), {1});
  EXPECT_TRUE(refused(long_name));
  Tensors sum;
  for (int i = 0; i < 3; ++i) *sum.Add() = Tensor(std::to_string(i), {int64_t{1} << 37});
  EXPECT_TRUE(refused(sum)) << "each fits, the sum does not";
  EXPECT_FALSE(refused(SmallModel())) << "and a good one is still welcome";
}

TEST(Hostile, IntroductionsOutOfRangeAreRefused) {
  Cluster cluster(Options(1, 1));
  control::Envelope message;
  control::RegisterServer& server = *message.mutable_register_server();
  const auto refused = [&] { return cluster.SayAsStranger(message)->has_error(); };
  server.set_protocol_version(transport::kControlProtocolVersion);
  server.set_instance("i");
  EXPECT_TRUE(refused()) << "no shards";
  server.add_shard_addresses("no address");
  EXPECT_TRUE(refused());
  server.set_shard_addresses(0, "tcp://" + std::string(kMaxAddressBytes, 'x'));
  EXPECT_TRUE(refused());
  server.set_shard_addresses(0, "tcp://a:1");
  server.set_protocol_version(99);
  EXPECT_TRUE(refused());
  server.set_protocol_version(transport::kControlProtocolVersion);
  server.set_instance("");
  EXPECT_TRUE(refused());
  server.set_instance(std::string(kMaxNameBytes + 1, 'i'));
  EXPECT_TRUE(refused());
  server.set_instance("i");
  for (uint32_t i = 0; i < kMaxShardsPerServer; ++i) server.add_shard_addresses("tcp://a:1");
  EXPECT_TRUE(refused());
  EXPECT_NE(cluster.AddWorker("w", 300).error(), nullptr) << "a rank beyond --workers";
  EXPECT_NE(cluster.AddWorker("w", INT32_MAX).error(), nullptr);
}

TEST(Hostile, MessagesOfTheWrongRoleOrNobodyAreRefused) {
  Cluster cluster(Options(1, 1));
  cluster.StartAll(1, 1);
  control::Envelope message;
  message.mutable_heartbeat();
  EXPECT_TRUE(cluster.SayAsStranger(message)->has_error());
  message.mutable_checkpoint_shard_done();
  EXPECT_TRUE(cluster.Say(cluster.workers[0], message)->has_error());
  message.mutable_barrier_arrive()->set_name("b");
  EXPECT_TRUE(cluster.Say(cluster.servers[0], message)->has_error());
  message.mutable_shutdown();
  EXPECT_TRUE(cluster.Say(cluster.servers[0], message)->has_error());
  message.Clear();
  EXPECT_TRUE(cluster.Say(cluster.servers[0], message)->has_error()) << "an empty envelope";
  EXPECT_TRUE(cluster.Say(cluster.workers[0], cluster.servers[0].registration)->has_error())
      << "one connection, two processes";
  message.mutable_status_request();
  EXPECT_TRUE(cluster.SayAsStranger(message)->has_status_page()) << "the page is for everyone";
  EXPECT_EQ(cluster.state->phase(), JobPhase::kRunning);
}

TEST(Hostile, ReportsThatCannotBeChangeNothing) {
  Cluster cluster(Options(2, 2));
  cluster.StartAll(2, 2);
  control::Envelope message;
  control::Heartbeat& heartbeat = *message.mutable_heartbeat();
  control::ShardReport& report = *heartbeat.add_shards();
  report.set_shard(1);  // The other server's.
  report.set_epoch(1);
  report.set_view_version(1);
  report.set_pushes(77);
  cluster.Say(cluster.servers[0], message);
  report.set_shard(UINT32_MAX);
  cluster.Say(cluster.servers[0], message);
  report.set_shard(0);
  report.set_view_version(UINT64_MAX);
  cluster.Say(cluster.servers[0], message);
  report.set_view_version(1);
  report.set_min_clock(INT64_MAX);
  for (const auto& [worker, incarnation, highest] :
       {std::tuple{0u, 1u, INT64_MAX}, {0u, 9u, int64_t{5}}, {1u << 31, 1u, int64_t{5}}}) {
    control::WorkerClock& clock = *report.add_worker_clocks();
    clock.set_worker(worker);
    clock.set_incarnation(incarnation);
    clock.set_highest(highest);
  }
  cluster.Say(cluster.servers[0], message);
  EXPECT_EQ(cluster.state->membership().worker(0).highest_ever, kNoClock);
  const nlohmann::json status = cluster.Status();
  EXPECT_EQ(status["shards"][1]["pushes"], 0);
  EXPECT_EQ(status["shards"][0]["min_clock"], 99);
}

TEST(Hostile, StepReportsAreCountedOnceAndOnlyIfTheyCanBe) {
  Cluster cluster(Options(1, 1));
  cluster.StartAll(1, 1);
  control::StepReport step;
  step.set_clock(3);
  step.set_loss(std::nan(""));
  step.set_bytes_pushed(UINT64_MAX);
  for (int i = 0; i < 2; ++i) {
    step.add_staleness()->set_chunks(UINT64_MAX);
    step.mutable_staleness(i)->set_staleness(i == 0 ? INT64_MIN : INT64_MAX);
  }
  cluster.workers[0].steps = {step, step};
  step.set_clock(INT64_MAX);
  cluster.workers[0].steps.push_back(step);
  step.set_clock(-5);
  cluster.workers[0].steps.push_back(step);
  cluster.Heartbeat(cluster.workers[0]);
  ASSERT_EQ(cluster.metrics.size(), 1u);
  EXPECT_TRUE(nlohmann::json::parse(cluster.metrics[0])["loss"].is_null());
  EXPECT_TRUE(cluster.Status()["progress"]["loss"].is_null());

  control::Envelope many;
  for (int i = 0; i <= kMaxStepsPerHeartbeat; ++i) {
    many.mutable_heartbeat()->add_steps()->set_clock(i);
  }
  EXPECT_TRUE(cluster.Say(cluster.workers[0], many)->has_error());
}

TEST(Hostile, ALogIsNotFlooded) {
  Cluster cluster(Options(1, 1));
  control::Envelope message;
  message.mutable_heartbeat();
  for (int i = 0; i < 1000; ++i) cluster.SayAsStranger(message);
  EXPECT_LE(cluster.log.size(), kMaxRefusalsLogged);
  EXPECT_EQ(cluster.Status()["refused"], 1000);
}

// Random numbers in every field of every message, from members and strangers: the job may fail or
// refuse, the coordinator must not.
void FillRandomly(Rng* rng, google::protobuf::Message* message, int depth);

void SetRandomField(Rng* rng, google::protobuf::Message* message,
                    const google::protobuf::FieldDescriptor* field, int depth) {
  using Field = google::protobuf::FieldDescriptor;
  const auto* reflection = message->GetReflection();
  const uint64_t bits = rng->Chance(0.5) ? rng->Below(4) : rng->Next();
  const int repeat = field->is_repeated() ? static_cast<int>(rng->Below(3)) : 1;
#define SLACKLINE_SET(Type, value)                                    \
  field->is_repeated() ? reflection->Add##Type(message, field, value) \
                       : reflection->Set##Type(message, field, value)
  for (int i = 0; i < repeat; ++i) {
    switch (field->cpp_type()) {
      case Field::CPPTYPE_INT32:
        SLACKLINE_SET(Int32, static_cast<int32_t>(bits));
        break;
      case Field::CPPTYPE_INT64:
        SLACKLINE_SET(Int64, static_cast<int64_t>(bits));
        break;
      case Field::CPPTYPE_UINT32:
        SLACKLINE_SET(UInt32, static_cast<uint32_t>(bits));
        break;
      case Field::CPPTYPE_UINT64:
        SLACKLINE_SET(UInt64, bits);
        break;
      case Field::CPPTYPE_DOUBLE:
        SLACKLINE_SET(Double, rng->Chance(0.2) ? std::nan("") : rng->Normal() * 1e3);
        break;
      case Field::CPPTYPE_BOOL:
        SLACKLINE_SET(Bool, (bits & 1) != 0);
        break;
      case Field::CPPTYPE_STRING:
        SLACKLINE_SET(String, std::string(rng->Below(8), static_cast<char>('a' + bits % 26)));
        break;
      case Field::CPPTYPE_MESSAGE:
        if (depth == 0) break;
        FillRandomly(rng,
                     field->is_repeated() ? reflection->AddMessage(message, field)
                                          : reflection->MutableMessage(message, field),
                     depth - 1);
        break;
      default:
        break;
    }
  }
#undef SLACKLINE_SET
}

void FillRandomly(Rng* rng, google::protobuf::Message* message, int depth) {
  const auto* descriptor = message->GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    if (rng->Chance(0.7)) SetRandomField(rng, message, descriptor->field(i), depth);
  }
}

TEST(Hostile, RandomMessagesDoNotBreakTheStateMachine) {
  const auto* oneof = control::Envelope::descriptor()->oneof_decl(0);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    CoordinatorOptions options = Options(1, 2);
    options.checkpoint_directory = "ckpt";
    Cluster cluster(options);
    if (seed % 2 == 0) cluster.StartAll(1, 2);
    for (int i = 0; i < 100; ++i) {
      control::Envelope message;
      const auto* kind =
          oneof->field(static_cast<int>(rng.Below(static_cast<uint64_t>(oneof->field_count()))));
      // A Leave or a registration now and then; else the others have nobody to play with.
      if (kind->number() < 16 && !rng.Chance(0.2)) continue;
      auto* body = message.GetReflection()->MutableMessage(&message, kind);
      FillRandomly(&rng, body, 3);
      const uint64_t who = rng.Below(4);
      if (who == 0 || cluster.servers.empty()) {
        cluster.SayAsStranger(message);
      } else if (who == 1) {
        cluster.Say(cluster.servers[0], message);
      } else {
        cluster.Say(cluster.workers[who - 2], message);
      }
      cluster.Tick(100 * kNsPerMs);
    }
    EXPECT_TRUE(nlohmann::json::accept(cluster.state->StatusJson(cluster.now)));
  }
}

}  // namespace
}  // namespace slackline::server::coordinator
