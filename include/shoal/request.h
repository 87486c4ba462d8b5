// Request: one call as a value.
#pragma once

#include <cstddef>
#include <span>

#include <shoal/types.h>

namespace shoal {

/// As the peer of a recv: any rank; the first matching message is received.
inline constexpr int kAnySource = -1;

/// One call, for the submit() functions of Communicator and StreamCommunicator. Every call has a function here, which fills in
/// the fields that the call uses; all other fields are ignored. What a call does, what its buffers hold and its errors:
/// Communicator's method of the same name.
///
/// Counts are in elements. Nothing is owned: `counts` and `receive_counts` must be valid until submit() returns, buffers until
/// the call has ended. Thread rule: a value; distinct copies may be used from distinct threads.
struct Request {
  using Counts = std::span<const std::size_t>;  ///< one number for each rank

  CollectiveKind kind = CollectiveKind::barrier;
  bool has_counts = false;  ///< the call ends in _v: shares have the sizes of `counts`
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  int peer = 0;  ///< send, receive: the other rank
  int tag = 0;
  const void* input = nullptr;
  void* output = nullptr;      ///< broadcast: the only buffer
  std::size_t count = 0;       ///< of the message, or of each share where it is dealt in shares
  Counts counts = {};          ///< of each rank's share; all_to_all_v: of the block for each rank
  Counts receive_counts = {};  ///< all_to_all_v: of the block from each rank

  static Request all_reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op) noexcept {
    return {.kind = CollectiveKind::all_reduce, .type = type, .op = op, .input = input, .output = output, .count = count};
  }
  static Request broadcast(void* buffer, std::size_t count, DataType type, int root) noexcept {
    return {.kind = CollectiveKind::broadcast, .type = type, .root = root, .output = buffer, .count = count};
  }
  static Request all_gather(const void* input, void* output, std::size_t count, DataType type) noexcept {
    return {.kind = CollectiveKind::all_gather, .type = type, .input = input, .output = output, .count = count};
  }
  static Request all_gather_v(const void* input, void* output, Counts counts, DataType type) noexcept {
    return all_gather(input, output, 0, type).with(counts);
  }
  static Request reduce_scatter(const void* input, void* output, std::size_t count, DataType type, ReduceOp op) noexcept {
    return {.kind = CollectiveKind::reduce_scatter, .type = type, .op = op, .input = input, .output = output, .count = count};
  }
  static Request reduce_scatter_v(const void* input, void* output, Counts counts, DataType type, ReduceOp op) noexcept {
    return reduce_scatter(input, output, 0, type, op).with(counts);
  }
  static Request reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, int root) noexcept {
    return {
        .kind = CollectiveKind::reduce, .type = type, .op = op, .root = root, .input = input, .output = output, .count = count};
  }
  static Request gather(const void* input, void* output, std::size_t count, DataType type, int root) noexcept {
    return {.kind = CollectiveKind::gather, .type = type, .root = root, .input = input, .output = output, .count = count};
  }
  static Request gather_v(const void* input, void* output, Counts counts, DataType type, int root) noexcept {
    return gather(input, output, 0, type, root).with(counts);
  }
  static Request scatter(const void* input, void* output, std::size_t count, DataType type, int root) noexcept {
    return {.kind = CollectiveKind::scatter, .type = type, .root = root, .input = input, .output = output, .count = count};
  }
  static Request scatter_v(const void* input, void* output, Counts counts, DataType type, int root) noexcept {
    return scatter(input, output, 0, type, root).with(counts);
  }
  static Request all_to_all(const void* input, void* output, std::size_t count, DataType type) noexcept {
    return {.kind = CollectiveKind::all_to_all, .type = type, .input = input, .output = output, .count = count};
  }
  static Request all_to_all_v(const void* input, Counts send_counts, void* output, Counts receive_counts,
                              DataType type) noexcept {
    return all_to_all(input, output, 0, type).with(send_counts, receive_counts);
  }
  static Request barrier() noexcept { return {.kind = CollectiveKind::barrier}; }
  static Request send(const void* buffer, std::size_t count, DataType type, int peer, int tag = 0) noexcept {
    return {.kind = CollectiveKind::send, .type = type, .peer = peer, .tag = tag, .input = buffer, .count = count};
  }
  static Request recv(void* buffer, std::size_t count, DataType type, int peer, int tag = 0) noexcept {
    return {.kind = CollectiveKind::receive, .type = type, .peer = peer, .tag = tag, .output = buffer, .count = count};
  }

 private:
  /// The call that ends in _v.
  [[nodiscard]] Request with(Counts sizes, Counts received_sizes = {}) const noexcept {
    Request request = *this;
    request.has_counts = true;
    request.counts = sizes;
    request.receive_counts = received_sizes;
    return request;
  }
};

}  // namespace shoal
