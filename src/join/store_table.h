// What the server of a TCP store keeps for all its clients: values, members, steps, and which sessions wait for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/trust/proof.h"

namespace shoal {

inline constexpr std::uint32_t kStoreNoRank = ~std::uint32_t{0};

class StoreRelay;
class StoreSession;

/// A client that has entered.
struct StoreMember {
  std::uint32_t rank = kStoreNoRank;
  std::uint32_t size = 0;
  std::uint64_t client = 0;  ///< the same for all connections of a client
  std::string process;
};

/// A step of the start-up: one value of each rank.
class StoreStep {
 public:
  explicit StoreStep(std::uint32_t size) : size_(size) {}

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  /// A rank that gives its value again replaces it. Precondition: rank < size.
  void put(std::uint32_t rank, std::string_view value);
  [[nodiscard]] bool has(std::uint32_t rank) const { return values_.contains(rank); }
  [[nodiscard]] bool complete() const noexcept { return values_.size() == size_; }
  [[nodiscard]] const std::map<std::uint32_t, std::string>& values() const noexcept { return values_; }
  /// Sets `answer`, once for all sessions. Precondition: complete().
  void make_answer();
  [[nodiscard]] std::vector<std::uint32_t> missing() const;

  std::set<StoreSession*> waiting;                ///< for the values
  std::map<StoreSession*, std::uint32_t> ending;  ///< after the last step: those that rank 0 waits for, and their ranks
  std::shared_ptr<const std::string> answer;      ///< set when all ranks have given their values
  bool last = false;                              ///< no rank needs the store after this step

 private:
  const std::uint32_t size_;
  std::map<std::uint32_t, std::string> values_;
};

/// Thread rule: one thread for a table and all its sessions.
struct StoreTable {
  std::string job;
  Key key;
  std::map<std::string, std::string, std::less<>> values;
  std::set<std::uint32_t> died{};                  ///< ranks that had entered, and whose connections ended without a leave
  std::map<std::uint32_t, StoreMember> members{};  ///< by rank: all that have entered, without those that have died
  std::string conflict{};                          ///< why the members cannot belong to one job; else empty
  std::map<std::uint32_t, StoreStep> steps{};      ///< by number; those that have not ended
  std::multimap<std::string, StoreSession*, std::less<>> waiting{};  ///< for a value, by key
  /// Sessions that have got answers, possibly several times; the owner of the sessions sends them and clears the list.
  std::vector<StoreSession*> answered{};

  std::set<StoreSession*> entered{};  ///< sessions whose clients have entered
  std::uint32_t server = 0;           ///< the rank whose process has this table
  StoreRelay* relay = nullptr;        ///< of a keeper: the values of a step come from rank 0's store
  std::uint64_t requests = 0;         ///< of all clients so far
  bool over = false;                  ///< the last step is complete: new clients want another store, on the same address

  /// Something has happened to a rank that all others must know: tells those that wait, and those that will look.
  void announce();
  /// Whether there is anything for a client that has entered to know.
  [[nodiscard]] bool has_news() const;
  /// A start-up of `size` ranks has: one of them has died or given up.
  [[nodiscard]] bool has_failed(std::size_t size) const;
  /// Those of 0..size-1 that rank 0 waits for: missing in the step for which it waits, else not entered.
  [[nodiscard]] std::vector<int> absent(int size) const;
};

}  // namespace shoal
