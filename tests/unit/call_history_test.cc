// Finds the first call in which two ranks disagreed, by the calls that each has recorded.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/diagnosis/call_history.h"
#include "tests/mentions.h"

namespace shoal {
namespace {

/// A rank that has made `count` all_reduces of different sizes; its call `odd` is a broadcast.
class Rank {
 public:
  explicit Rank(std::uint64_t count, std::optional<std::uint64_t> odd = std::nullopt) {
    for (std::uint64_t call = 0; call < count; ++call) {
      CallSignature signature;
      signature.count = call;
      if (odd == call) signature.kind = CollectiveKind::broadcast;
      flight_record_.start(call, signature);
    }
  }
  [[nodiscard]] const FlightRecordPage& page() const { return *flight_record_; }
  [[nodiscard]] CallHistory history() const { return latest_calls(page()); }

 private:
  FlightRecordEntry flight_record_{nullptr, 0, 0, {}};
};

TEST(CallHistory, FindsFirstDifferentCallAtAnyLag) {
  for (const auto& [mine, theirs] : {std::pair{5, 5}, {5, 90}, {90, 5}, {1000, 1000}, {1000, 1090}, {1090, 1000}}) {
    const std::uint64_t odd = static_cast<std::uint64_t>(std::min(mine, theirs)) - 2;
    const auto found = first_difference(Rank(mine).page(), Rank(theirs, odd).history());
    ASSERT_TRUE(found) << mine << " " << theirs;
    EXPECT_EQ(found->sequence, odd);
    EXPECT_EQ(found->signature.kind, CollectiveKind::broadcast);
    EXPECT_FALSE(first_difference(Rank(mine).page(), Rank(theirs).history()));
  }
}

TEST(CallHistory, IgnoresCallsThatOnlyOneRankKnows) {
  EXPECT_FALSE(first_difference(Rank(1000).page(), Rank(1000, 500).history()));  // overwritten
  EXPECT_FALSE(first_difference(Rank(10).page(), Rank(20, 15).history()));       // not made yet
  EXPECT_FALSE(first_difference(Rank(10).page(), Rank(10'000).history()));       // no call that both have recorded
  EXPECT_FALSE(first_difference(Rank(10'000).page(), Rank(10).history()));
  EXPECT_FALSE(first_difference(Rank(0).page(), Rank(0).history()));
}

TEST(CallHistory, FitsInOneControlTile) {
  const CallHistory sent = Rank(1000).history();
  const auto bytes = to_bytes(sent);
  EXPECT_LE(bytes.size(), 4096U);
  const auto received = parse_history(bytes);
  ASSERT_TRUE(received);
  EXPECT_EQ(received->first, 1000 - kFlightRecordCalls / 2);
  EXPECT_EQ(received->calls, sent.calls);
  EXPECT_TRUE(parse_history(to_bytes({})));
}

CallSignature numbered(std::uint64_t count) {
  CallSignature signature;
  signature.count = count;
  signature.plan_fingerprint = count * 0x0101010101010101U;
  return signature;
}

/// The signature of a call that follows calls with these hashes.
CallSignature signature_after(std::initializer_list<std::uint64_t> hashes) {
  CallChain chain;
  for (const std::uint64_t hash : hashes) chain.add(hash);
  return chain.of(numbered(9));
}

TEST(CallChain, CoversAllEarlierCalls) {
  EXPECT_EQ(signature_after({}), signature_after({}));
  EXPECT_EQ(signature_after({1, 2, 3}), signature_after({1, 2, 3}));
  for (const auto& other :
       {signature_after({}), signature_after({1, 2}), signature_after({1, 3, 2}), signature_after({0, 1, 2, 3}),
        signature_after({1, 2, 3, 0}), signature_after({1, 2, 3 + (std::uint64_t{1} << 63)})}) {
    EXPECT_FALSE(other == signature_after({1, 2, 3}));
    EXPECT_THAT(difference(other, signature_after({1, 2, 3})), testing::Mentions("algorithm"));
    // The low half may hold the hash of counts.
    EXPECT_EQ(static_cast<std::uint32_t>(other.plan_fingerprint), static_cast<std::uint32_t>(numbered(9).plan_fingerprint));
  }
}

TEST(CallChain, KeepsDifferenceForever) {
  CallChain mine;
  CallChain other;
  mine.add(1);
  other.add(2);
  for (std::uint64_t call = 0; call < 100'000; ++call) {
    ASSERT_FALSE(mine.of(numbered(9)) == other.of(numbered(9))) << "after " << call << " calls";
    mine.add(call * 7);
    other.add(call * 7);
  }
}

TEST(CallHistory, MalformedBytesAreRefusedOrHarmless) {
  auto bytes = to_bytes(Rank(3).history());
  for (const std::size_t size : {0UL, 7UL, 9UL, bytes.size() - 1})
    EXPECT_FALSE(parse_history(std::span(bytes).first(size))) << size;
  CallHistory wraps = Rank(3, 2).history();
  wraps.first = std::numeric_limits<std::uint64_t>::max() - 1;  // its third is call 0
  const auto found = first_difference(Rank(10).page(), wraps);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->sequence, 0U);
}

}  // namespace
}  // namespace shoal
