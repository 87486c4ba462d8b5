// Lets shoal's ranks find each other through an existing c10d store.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <shoal/store.h>

namespace shoal::torch {

/// A shoal::Store over a c10d::Store: TCPStore, FileStore, HashStore, PrefixStore, a store written in Python. It must be the
/// part of a store that belongs to one start (start_round.h): a rank that aborts writes its error there, and the other ranks
/// read it while they wait. Thread rule: that of the underlying store; used by one thread while a communicator is being made.
class StoreAdapter final : public shoal::Store {
 public:
  explicit StoreAdapter(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  Status set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, std::chrono::steady_clock::time_point deadline) override;
  Status enter(int rank, int size) override;
  void leave() override;
  Result<std::string> get_from(int rank, std::string_view key, std::chrono::steady_clock::time_point deadline) override;
  Status look(std::chrono::steady_clock::time_point deadline) override;
  /// The exception that a signal handler raised during a wait, which made the wait fail; null if there is none.
  [[nodiscard]] const std::exception_ptr& interruption() const { return interruption_; }

 private:
  Result<std::string> wait_for(std::string_view key, std::chrono::steady_clock::time_point deadline, bool sees_failures);
  Status failure();

  c10::intrusive_ptr<c10d::Store> store_;
  bool entered_ = false;
  std::exception_ptr interruption_;
};

}  // namespace shoal::torch
