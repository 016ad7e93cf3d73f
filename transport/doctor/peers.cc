#include "transport/doctor/peers.h"

#include <algorithm>
#include <array>
#include <boost/asio.hpp>
#include <boost/process.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "common/file.h"
#include "proto/wire_header.h"
#include "transport/address.h"

namespace slackline::transport {
namespace {

using boost::asio::ip::tcp;
using nlohmann::json;

// Of what a stranger sends.
constexpr size_t kMaxLineBytes = 64u << 10;
constexpr size_t kMaxRemoteFindings = 100;
constexpr size_t kMaxHostfileBytes = 1u << 20;
constexpr size_t kMaxShownChars = 300;
// The exchange with the shortest way is the one that tells the clocks best (NTP's filter).
constexpr int kClockExchanges = 8;
// Beyond this the fleet's logs and metrics cannot be laid side by side.
constexpr TimeNs kMaxSkewNs = kNsPerSecond;

TimeNs WallClockNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string Milliseconds(TimeNs ns) {
  std::ostringstream text;
  text.precision(3);
  text << static_cast<double>(ns) / 1e6 << " ms";
  return text.str();
}

std::string Shown(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  if (text.size() > kMaxShownChars) text = text.substr(0, kMaxShownChars) + "...";
  return text;
}

// One request line, one answer line; empty if there was none in time.
std::string Ask(tcp::iostream& stream, const char* request, TimeNs timeout_ns) {
  stream.expires_after(std::chrono::nanoseconds(timeout_ns));
  stream << request << std::endl;
  std::string line(kMaxLineBytes, '\0');
  stream.getline(line.data(), static_cast<std::streamsize>(line.size()));
  if (!stream) return {};
  line.resize(line.find('\0'));
  return line;
}

void CheckClock(tcp::iostream& stream, const std::string& check, const PeerOptions& options,
                Report& report) {
  TimeNs skew_ns = 0, shortest_ns = INT64_MAX;
  for (int i = 0; i < kClockExchanges; ++i) {
    const TimeNs begin_ns = WallClockNs();
    const std::string answer = Ask(stream, "time", options.timeout_ns);
    const TimeNs end_ns = WallClockNs();
    TimeNs there_ns = 0;
    if (std::istringstream(answer) >> there_ns && end_ns - begin_ns < shortest_ns) {
      shortest_ns = end_ns - begin_ns;
      skew_ns = there_ns - (begin_ns + shortest_ns / 2);
    }
  }
  if (shortest_ns == INT64_MAX) {
    report.Warn(check, "does not tell its time", "start the same version of this program there");
    return;
  }
  const std::string found = "clock " + Milliseconds(skew_ns) + " ahead, within " +
                            Milliseconds(shortest_ns / 2) + "; round trip " +
                            Milliseconds(shortest_ns);
  if (std::abs(skew_ns) - shortest_ns / 2 > kMaxSkewNs) {
    report.Warn(check, found, "set both clocks: apt-get install chrony (logs cannot be compared)");
  } else {
    report.Ok(check, found);
  }
}

// What the other doctor says about its own host.
void TakeRemoteFindings(const json& answer, const std::string& check, Report& report) {
  const json findings = answer.value("report", json::object()).value("findings", json::array());
  size_t taken = 0, fine = 0;
  for (const json& finding : findings) {
    if (!finding.is_object() || ++taken > kMaxRemoteFindings) continue;
    const std::string verdict = finding.value("verdict", "");
    const std::string text = Shown(finding.value("check", "") + ": " + finding.value("found", ""));
    const std::string cure = Shown(finding.value("cure", ""));
    if (verdict == VerdictName(Verdict::kFailure)) {
      report.Fail(check, text, cure);
    } else if (verdict == VerdictName(Verdict::kWarning)) {
      report.Warn(check, text, cure);
    } else {
      ++fine;
    }
  }
  report.Ok(check, std::to_string(fine) + " checks of its own found nothing to cure");
}

void CheckAnswer(const std::string& text, const std::string& check, Report& report) {
  const json answer = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || !answer.contains("slackline_doctor")) {
    report.Fail(check, "something else answers: '" + Shown(text.substr(0, 60)) + "'",
                "start there: slackline-doctor --serve");
    return;
  }
  try {
    const int version = answer.value("wire_version", -1);
    if (version != proto::kWireVersion) {
      report.Fail(check,
                  "speaks wire protocol " + std::to_string(version) + ", this host " +
                      std::to_string(proto::kWireVersion),
                  "install the same version of Slackline on both");
    }
    TakeRemoteFindings(answer, check, report);
  } catch (const json::exception& error) {  // A field of another type than ours.
    report.Fail(check, std::string("its report cannot be read: ") + error.what(),
                "install the same version of Slackline on both");
  }
}

}  // namespace

Result<std::vector<std::string>> ReadHostfile(const std::string& path) {
  SLACKLINE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxHostfileBytes));
  std::vector<std::string> hosts;
  std::istringstream lines(text);
  std::string line;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    std::string name;
    if (!(std::istringstream(line.substr(0, line.find('#'))) >> name)) continue;
    // A name that begins with a dash would be an option to ssh.
    if (name.starts_with('-') || name.size() > kMaxHostChars) {
      return Err(InvalidArgument(path + ", line " + std::to_string(number) +
                                 ": expected HOST [SLOTS] [server|worker|any], found '" +
                                 Shown(line) + "'"));
    }
    const bool here = name == "localhost" || name == "127.0.0.1" || name == "::1";
    if (!here && std::find(hosts.begin(), hosts.end(), name) == hosts.end()) {
      hosts.push_back(name);
    }
    if (hosts.size() > kMaxDoctorPeers) {
      return Err(
          InvalidArgument(path + ": more than " + std::to_string(kMaxDoctorPeers) + " hosts"));
    }
  }
  return hosts;
}

void CheckPeer(std::string_view address, const PeerOptions& options, Report& report) {
  const std::string check = "peer " + std::string(address);
  const Result<Address> parsed = ParseHostPort(address);
  if (!parsed) {
    report.Fail(check, parsed.error().message(), "--peers=HOST:PORT,...");
    return;
  }
  tcp::iostream stream;
  stream.expires_after(std::chrono::nanoseconds(options.timeout_ns));
  stream.connect(parsed->host, std::to_string(parsed->port));
  if (!stream) {
    const boost::system::error_code error = stream.error();
    const bool silent =
        error == boost::asio::error::operation_aborted || error == boost::asio::error::timed_out;
    report.Fail(check,
                silent ? "no answer within " + Milliseconds(options.timeout_ns) : error.message(),
                silent ? "a firewall between the hosts drops it, or the host is down: allow TCP "
                         "(and UDP 4791 for RoCE v2) between them"
                       : "name and route: getent hosts NAME, ip route get ADDRESS; is the program "
                         "running there: slackline-doctor --serve");
    return;
  }
  boost::system::error_code ignored;
  const tcp::endpoint here = stream.socket().local_endpoint(ignored);
  report.Ok(check, "answers; the route leaves from " + here.address().to_string());
  CheckAnswer(Ask(stream, "report", options.timeout_ns), check, report);
  CheckClock(stream, check, options, report);
}

void CheckPeerOverSsh(const std::string& host, const PeerOptions& options, Report& report) {
  namespace process = boost::process;
  const std::string check = "peer " + host;
  // The host's end is killed with this one's terminal (-tt); `timeout` bounds all of it.
  const std::string seconds = std::to_string(30 + 4 * options.timeout_ns / kNsPerSecond);
  std::vector<std::string> command = {"-k", "5", seconds};
  std::istringstream words(options.ssh);
  for (std::string word; words >> word;) command.push_back(word);
  command.insert(command.end(), {"-tt", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host,
                                 "'" + options.program + "' --serve --transport=" +
                                     options.transport + " --serve_s=" + seconds});
  process::ipstream output;
  std::error_code error;
  process::child child("/usr/bin/timeout", process::args(command), process::std_out > output,
                       process::std_err > process::null, process::std_in < process::null, error);
  if (error) {
    report.Fail(check, "ssh cannot be started: " + error.message(),
                "apt-get install openssh-client");
    return;
  }
  std::string line, said;
  while (std::getline(output, line) && !line.starts_with(kServes)) said = line;
  if (!line.starts_with(kServes)) {
    child.wait(error);
    report.Fail(check, "cannot be started over ssh" + (said.empty() ? "" : ": " + Shown(said)),
                "must work without a password and with the same path there: ssh " + host + " " +
                    options.program + " --version");
    return;
  }
  line.resize(line.find_last_not_of(" \r") + 1);
  CheckPeer(host + ":" + line.substr(kServes.size()), options, report);
  child.terminate(error);
  child.wait(error);
}

Status ServePeers(uint16_t port, TimeNs duration_ns, const Report& report,
                  const std::function<void(uint16_t)>& listening) {
  boost::asio::io_context context;
  boost::system::error_code error;
  tcp::acceptor acceptor(context);
  acceptor.open(tcp::v4(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind({tcp::v4(), port}, error);
  if (!error) acceptor.listen(boost::asio::socket_base::max_listen_connections, error);
  if (error) {
    return ErrnoStatus(error.value(), "cannot listen on port " + std::to_string(port));
  }
  listening(acceptor.local_endpoint().port());
  json hello = {
      {"slackline_doctor", 1}, {"wire_version", proto::kWireVersion}, {"report", report.Json()}};
  const std::string answer = hello.dump();

  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(duration_ns);
  while (std::chrono::steady_clock::now() < deadline) {
    tcp::iostream stream;
    error = boost::asio::error::would_block;
    acceptor.async_accept(stream.socket(),
                          [&](const boost::system::error_code& result) { error = result; });
    context.restart();
    context.run_until(deadline);
    if (error == boost::asio::error::would_block) break;
    if (error) continue;
    // One at a time: a visit takes milliseconds, and no visitor may stay for long.
    stream.expires_after(std::chrono::seconds(5));
    std::array<char, 64> request{};
    while (stream.getline(request.data(), request.size())) {
      const std::string_view word(request.data());
      if (word == "report") {
        stream << answer << std::endl;
      } else if (word == "time") {
        stream << WallClockNs() << std::endl;
      } else {
        break;
      }
    }
  }
  acceptor.cancel(error);
  context.restart();
  context.run();
  return OkStatus();
}

}  // namespace slackline::transport
