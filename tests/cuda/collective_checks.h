// Calls of StreamCommunicator on known data, and what they must give: every rank can work out what all ranks have given.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/cuda/stream_ranks.h"

namespace shoal::testing {

using Bytes = std::vector<std::byte>;

/// What rank `rank` gives in call number `call`. Small numbers, whose sums are exact in every type, or (not `exact`) such as
/// round in no other order than that of the ranks.
Bytes given(int rank, int call, std::size_t count, DataType type, bool exact);

/// A buffer in fake device memory.
class DeviceBuffer {
 public:
  DeviceBuffer(StreamRank& rank, std::size_t bytes, std::size_t offset = 0);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  std::byte* get() { return static_cast<std::byte*>(base_) + offset_; }
  std::byte* touch() { return rank_.cuda.touch(get()); }
  void set(const Bytes& data);
  Bytes read(std::size_t bytes) { return Bytes(touch(), touch() + bytes); }

 private:
  StreamRank& rank_;
  std::size_t offset_;
  void* base_ = nullptr;
};

/// A collective to be tried.
struct Ask {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::size_t count = 0;  ///< with shares of different sizes: about that of the largest
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  bool in_place = false;
  std::size_t misalignment = 0;  ///< bytes
  bool uneven = false;           ///< the form with counts
};
std::string to_string(const Ask& ask);

/// Elements of the share of `rank`, where shares differ.
std::size_t share_of(const Ask& ask, int rank);
/// Elements that `from` sends to `to` in an all_to_all.
std::size_t block_of(const Ask& ask, int from, int to, int ranks);

/// What the call takes from `rank`, and what it must leave in the output of `rank`; empty where it has no part.
Bytes input_of(const Ask& ask, int rank, int ranks, int call, bool exact);
Bytes wanted_of(const Ask& ask, int rank, int ranks, int call, bool exact);

/// Starts it on the rank's stream.
Result<StreamWork> start(StreamRank& rank, const Ask& ask, const void* input, void* output);

/// Makes call number `call` and checks it; empty where all is well.
std::string check(StreamRank& rank, const Ask& ask, int call, bool exact = false, bool registers = false);

/// Calls of all kinds, sizes, forms and places: less than a vector, odd ones, beyond one shot, several pieces.
std::string all_kinds(StreamRank& rank, bool exact, bool registers = false);

}  // namespace shoal::testing
