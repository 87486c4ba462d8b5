// CallSignature: what a rank says of a call, compared by its peers on the first packet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "src/schedule/program.h"

namespace shoal {

/// The part of a call that all ranks must agree on. Travels as it lies in memory (little-endian machines only).
struct CallSignature {
  CollectiveKind kind = CollectiveKind::all_reduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::uint8_t has_counts = 0;  ///< 1 where shares differ (Collective::counts)
  std::int32_t root = 0;
  std::uint64_t count = 0;
  std::uint64_t plan_fingerprint =
      0;  ///< hash of algorithm name, topology shape and tile size; lower half: of the counts, if any

  friend bool operator==(const CallSignature& a, const CallSignature& b) noexcept { return std::memcmp(&a, &b, sizeof a) == 0; }
};
static_assert(sizeof(CallSignature) == 24, "compared and sent as bytes: no padding");

/// "all_reduce float32 x 1024 sum"; "broadcast int8 x 3 from rank 2"; "reduce_scatter_v float32 x 10 sum" (all counts
/// together). Safe for any bytes from a peer.
std::string to_string(const CallSignature& signature);

/// What a rank says of an all_to_all with counts to one peer. All ranks agree on the rest of the call, but each two of them on
/// what goes between them: `sends` elements to the peer, `receives` from it. `signature` is what is the same for all peers.
CallSignature between_two(CallSignature signature, std::uint64_t sends, std::uint64_t receives);

/// Where two ranks are in the same all_to_all with counts, but do not agree on what goes between them: what each sends that the
/// other does not expect, "rank 0 sends 5 elements to rank 1, which expects 3". Else empty.
std::string pair_difference(const CallSignature& mine, const std::string& my_name, const CallSignature& theirs,
                            const std::string& their_name);

/// What a rank has called so far, as a hash: whoever has made other calls says other words of all that follow.
class CallChain {
 public:
  /// What is said of the next call, whose words are `signature` wherever it stands. Those to one peer: see between_two().
  [[nodiscard]] CallSignature of(const CallSignature& signature) const noexcept {
    // By words, as it will be read: a processor waits for narrow writes under a wide read.
    std::uint64_t words[sizeof signature / sizeof(std::uint64_t)];
    std::memcpy(words, &signature, sizeof signature);
    words[offsetof(CallSignature, plan_fingerprint) / sizeof words[0]] ^= hash_ & kUpperHalf;  // below may be a hash of counts
    CallSignature said;
    std::memcpy(&said, words, sizeof said);
    return said;
  }
  /// A call has been started; `hash`: of its signature, the same on every rank.
  void add(std::uint64_t hash) noexcept {
    hash_ = (hash_ ^ hash) * 0x9E3779B97F4A7C15U;  // odd: nothing is lost, and the upper half tells of all of it
    hash_ ^= hash_ >> 32;
  }

 private:
  static constexpr std::uint64_t kUpperHalf = 0xFFFFFFFF'00000000U;
  std::uint64_t hash_ = 0x9E3779B97F4A7C15U;  // not zero: a call whose hash is zero counts, too
};

/// What differs between two signatures, for a mismatch report: "count", "type", ... ; where nothing else does, the algorithm or
/// a call before it.
std::string difference(const CallSignature& a, const CallSignature& b);

}  // namespace shoal
