// CallTrace: the stages of one communicator's calls, for the Recorder.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "src/diagnosis/recorder.h"
#include "src/plan/operation.h"
#include "src/topology/group.h"

namespace shoal {

/// Thread rule: the driver. Only while the Recorder is on.
class CallTrace {
 public:
  explicit CallTrace(const Group& group) noexcept : group_(group) {}

  /// Records a piece of work of `operation` with `peer`, which began at `begin` and has just ended. `in_node`: its stage where
  /// the peer is on this host.
  void add(const internal::Operation& operation, int peer, Stage in_node, std::size_t bytes, Recorder::Time begin) const {
    const bool network = group_.topology.link_class(group_.rank, peer) == LinkClass::network;
    Recorder::add({.begin = begin == Recorder::Time() ? std::chrono::steady_clock::now() : begin,  // switched on meanwhile
                   .end = std::chrono::steady_clock::now(),
                   .call = operation.sequence(),
                   .message_bytes = operation.plan->key.collective.message_bytes(group_.topology.ranks()),
                   .bytes = bytes,
                   .communicator = number_,
                   .thread = 0,
                   .stage = network ? Stage::wire : in_node});
  }

 private:
  const Group& group_;
  const std::uint32_t number_ = Recorder::next_number();
};

}  // namespace shoal
