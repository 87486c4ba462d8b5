// CallSignature: a rank's description of a call, compared by its peers on the first packet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "src/schedule/program.h"

namespace shoal {

/// The part of a call that all ranks must agree on. Sent as it lies in memory (little-endian machines only).
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

/// The signature of an all_to_all with counts that a rank sends to one peer. All ranks agree on the rest of the call, but each
/// two of them on what goes between them: `sends` elements to the peer, `receives` from it. `signature`: the part for all
/// peers.
CallSignature between_two(CallSignature signature, std::uint64_t sends, std::uint64_t receives);

/// Where two ranks are in the same all_to_all with counts but disagree on what goes between them: each count sent that the
/// receiver does not expect, "rank 0 sends 5 elements to rank 1, which expects 3". Else empty.
std::string pair_difference(const CallSignature& mine, const std::string& my_name, const CallSignature& theirs,
                            const std::string& their_name);

/// A hash of the calls that a rank has made so far: a rank that has made other calls has other signatures of all later calls.
class CallChain {
 public:
  /// The signature of the next call; `signature` is the call's own, wherever in the order it stands. For one peer: see
  /// between_two().
  [[nodiscard]] CallSignature of(const CallSignature& signature) const noexcept {
    // In 64-bit words, as it will be read: a processor stalls at a wide read of narrow writes.
    std::uint64_t words[sizeof signature / sizeof(std::uint64_t)];
    std::memcpy(words, &signature, sizeof signature);
    // The lower half may be a hash of counts.
    words[offsetof(CallSignature, plan_fingerprint) / sizeof words[0]] ^= hash_ & kUpperHalf;
    CallSignature said;
    std::memcpy(&said, words, sizeof said);
    return said;
  }
  /// A call has been started; `hash`: of its signature, the same on every rank.
  void add(std::uint64_t hash) noexcept {
    hash_ = (hash_ ^ hash) * 0x9E3779B97F4A7C15U;  // odd: no information is lost, and the upper half depends on all of it
    hash_ ^= hash_ >> 32;
  }

 private:
  static constexpr std::uint64_t kUpperHalf = 0xFFFFFFFF'00000000U;
  std::uint64_t hash_ = 0x9E3779B97F4A7C15U;  // not zero: a call whose hash is zero counts, too
};

/// What differs between two signatures, for a mismatch report: "count", "type", ... ; where none of these does, the algorithm
/// or an earlier call.
std::string difference(const CallSignature& a, const CallSignature& b);

}  // namespace shoal
