// Lets shoal's ranks find each other through the store that c10d already has.
#pragma once

#include <string>
#include <string_view>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <shoal/store.h>

namespace shoal::torch {

/// A shoal::Store over a c10d::Store: TCPStore, FileStore, HashStore, PrefixStore, a store written in Python.
/// Thread rule: that of the store below; used by one thread while a communicator is being made.
class StoreAdapter final : public shoal::Store {
 public:
  explicit StoreAdapter(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  Status set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, std::chrono::steady_clock::time_point deadline) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace shoal::torch
