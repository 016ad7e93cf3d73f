// Runs tests that need a verbs device. Without one they are skipped, with the reason, and CTest
// lists them as skipped.
#include <gtest/gtest.h>

#include <iostream>

#include "transport/rdma/device.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto ports = slackline::transport::OpenPorts({});
  if (!ports) {
    constexpr int kSkipped = 77;  // What CMake's SKIP_RETURN_CODE says.
    std::cout << "skipped: " << ports.error().message() << "\n";
    return kSkipped;
  }
  const int failed = RUN_ALL_TESTS();
  std::cout << "rdma: ran " << testing::UnitTest::GetInstance()->test_to_run_count()
            << " tests on device " << ports->front().device << "\n";
  return failed;
}
