// Calls of StreamCommunicator on known data, and their expected results: every rank can compute the input of all ranks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/cuda/stream_ranks.h"

namespace shoal::testing {

using Bytes = std::vector<std::byte>;

/// The input of rank `rank` in call number `call`. `exact`: small numbers, whose sums are exact in every type; else numbers
/// whose sums depend on the order of the ranks.
Bytes rank_data(int rank, int call, std::size_t count, DataType type, bool exact);

/// A buffer in fake device memory.
class DeviceBuffer {
 public:
  DeviceBuffer(StreamRank& rank, std::size_t bytes, std::size_t offset = 0);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  std::byte* get() { return static_cast<std::byte*>(base_) + offset_; }
  std::byte* host_address() { return rank_.cuda.host_address(get()); }
  void set(const Bytes& data);
  Bytes read(std::size_t bytes) { return Bytes(host_address(), host_address() + bytes); }

 private:
  StreamRank& rank_;
  std::size_t offset_;
  void* base_ = nullptr;
};

/// A collective call to test.
struct TestCall {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::size_t count = 0;  ///< with shares of different sizes: about the largest
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  bool in_place = false;
  std::size_t misalignment = 0;  ///< bytes
  bool uneven = false;           ///< the form with counts
};
std::string to_string(const TestCall& test);

/// Elements of the share of `rank`.
std::size_t share_of(const TestCall& test, int rank);
/// Elements that `from` sends to `to` in an all_to_all.
std::size_t block_of(const TestCall& test, int from, int to, int ranks);

/// The input of `rank` and the expected output of `rank`; empty if the rank has none.
Bytes input_of(const TestCall& test, int rank, int ranks, int call, bool exact);
Bytes wanted_of(const TestCall& test, int rank, int ranks, int call, bool exact);

/// Starts the call on the rank's stream.
Result<StreamWork> start(StreamRank& rank, const TestCall& test, const void* input, void* output);

/// Makes call number `call` and checks it. Returns the error, or "".
std::string check(StreamRank& rank, const TestCall& test, int call, bool exact = false, bool registers = false);

/// Checks calls of all kinds, forms and placements, with sizes below a vector, odd, beyond one-shot and of several pieces.
/// Returns the first error, or "".
std::string check_all_kinds(StreamRank& rank, bool exact, bool registers = false);

}  // namespace shoal::testing
