// Any bytes are refused or give tensors that lie inside the file, one after another.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/byte_order.h"
#include "common/safetensors.h"
#include "tests/testing/fuzz_expect.h"

namespace {

using slackline::testing::FuzzExpect;

void ParseAndCheck(std::span<const std::byte> file) {
  const auto index = slackline::ParseSafetensors(file);
  if (!index) {
    FuzzExpect(index.error().code() == slackline::StatusCode::kDataLoss, "a refusal is DATA_LOSS");
    FuzzExpect(!index.error().message().empty(), "a refusal says why");
    return;
  }
  uint64_t position = index->data_offset;
  for (const slackline::TensorEntry& tensor : index->tensors) {
    FuzzExpect(index->data_offset + tensor.begin == position, "tensors touch");
    uint64_t bytes = slackline::TensorDtypeBytes(tensor.dtype);
    for (const uint64_t extent : tensor.shape) bytes *= extent;
    FuzzExpect(bytes == tensor.bytes(), "the range fits the shape");
    position += bytes;
  }
  FuzzExpect(position == file.size(), "the tensors end where the file does");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  ParseAndCheck(input);
  // The same bytes as a header without data: the fuzzer need not find the length first.
  std::string file(sizeof(uint64_t), '\0');
  slackline::StoreLe<uint64_t>(reinterpret_cast<std::byte*>(file.data()), size);
  file.append(reinterpret_cast<const char*>(data), size);
  ParseAndCheck(std::as_bytes(std::span(file)));
  return 0;
}
