// A random collective call, and a single-process model of its result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <shoal/communicator.h>

#include "src/schedule/program.h"

namespace shoal::testing {

/// One call, the same on every rank. Values are small integers, so that every order of reduction gives the same bits.
struct ModelCall {
  std::uint64_t id = 0;  ///< seed of the values
  CollectiveKind kind = CollectiveKind::all_reduce;
  DataType type = DataType::int32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  int ranks = 1;
  std::size_t count = 0;            ///< elements of the message, or of each share
  std::vector<std::size_t> shares;  ///< counts of the ranks, if they differ; all_to_all: from rank a to rank b at a * ranks + b
  bool in_place = false;
  bool async = false;

  /// The call of `rank`. The result refers to `counts`, which this sets.
  [[nodiscard]] Collective collective(int rank, std::vector<std::size_t>& counts) const;
  [[nodiscard]] std::string text() const;
};

/// A random call among `ranks` ranks, with up to about `max_count` elements in all.
ModelCall random_call(std::mt19937_64& random, int ranks, std::size_t max_count);

/// The buffers of one rank for one call, with a border around the output that no rank may write.
class ModelBuffers {
 public:
  ModelBuffers(const ModelCall& call, int rank);

  [[nodiscard]] const void* input() const noexcept { return input_; }
  [[nodiscard]] void* output() const noexcept { return output_; }
  [[nodiscard]] bool in_place() const noexcept { return in_place_; }
  /// Empty if the output matches the model and nothing else was written; else what is wrong.
  [[nodiscard]] std::string check() const;

 private:
  const ModelCall& call_;
  int rank_;
  bool in_place_ = false;
  std::vector<std::byte> input_memory_;
  std::vector<std::byte> output_memory_;
  std::vector<std::byte> input_before_;
  const std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
};

/// Makes the call through the public interface. A call that is not `async` has ended on return.
Result<Work> make_call(Communicator& communicator, const ModelCall& call, const ModelBuffers& buffers);

}  // namespace shoal::testing
