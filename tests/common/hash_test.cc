#include "common/hash.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace slackline {
namespace {

ConstBytes Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Hash, IsXxh3OfSeedZero) {
  EXPECT_EQ(HashToHex(Hash64({})), "2d06800538d394c2");
  EXPECT_EQ(HashToHex(Hash64(Bytes("slackline"))), "86af06b43dd7b88c");
}

TEST(Hash, PiecesEqualTheWhole) {
  std::vector<std::byte> bytes(5000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 >> 3);
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{256}, size_t{4999}}) {
    StreamHash hash;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      hash.Update(ConstBytes(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    }
    EXPECT_EQ(hash.Digest(), Hash64(bytes)) << piece;
  }
}

TEST(Hash, MovedStreamGoesOn) {
  StreamHash first;
  first.Update(Bytes("slack"));
  StreamHash second = std::move(first);
  second.Update(Bytes("line"));
  EXPECT_EQ(second.Digest(), Hash64(Bytes("slackline")));
}

TEST(Hash, HexIsSixteenDigitsBothWays) {
  EXPECT_EQ(HashToHex(0), "0000000000000000");
  EXPECT_EQ(HashToHex(0x0123456789ABCDEF), "0123456789abcdef");
  EXPECT_EQ(HashFromHex("0123456789abcdef"), 0x0123456789ABCDEFu);
  EXPECT_EQ(HashFromHex("FFFFFFFFFFFFFFFF"), UINT64_MAX);
  for (const std::string_view bad :
       {"", "0", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeg", "0x23456789abcdef",
        "+123456789abcdef", " 123456789abcdef"}) {
    EXPECT_EQ(HashFromHex(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace slackline
