#include "src/progress/client_directory.h"

#include <fmt/format.h>

namespace shoal {

std::uint32_t ClientDirectory::next_number() noexcept {
  const std::uint32_t given = numbers_given_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (given < kCommunicatorLimit) return given;
  numbers_given_.store(kCommunicatorLimit, std::memory_order_relaxed);
  return kCommunicatorLimit;
}

Status ClientDirectory::add(ProgressClient& client) {
  const GroupName& name = client.group().name;
  if (client.number() == kCommunicatorLimit) {
    return {StatusCode::unsupported,
            fmt::format("this process has made {} communicators; no number is left for another", kCommunicatorLimit - 1)};
  }
  if (by_name_.contains(name) || has_ended(name))
    return {StatusCode::internal, fmt::format("the name {:x} of a new communicator is in use", name.key)};
  clients_.push_back(&client);
  by_number_.emplace(client.number(), &client);
  by_name_.emplace(name, &client);
  return {};
}

void ClientDirectory::remove(ProgressClient& client) {
  const GroupName& name = client.group().name;
  std::erase(clients_, &client);
  by_number_.erase(client.number());
  by_name_.erase(name);
  ended_.insert(name);
  ended_in_order_.push_back(name);
  if (ended_in_order_.size() <= kMostEnded) return;
  ended_.erase(ended_in_order_.front());
  ended_in_order_.pop_front();
}

ProgressClient* ClientDirectory::find(std::uint32_t number) const noexcept {
  const auto known = by_number_.find(number);
  return known == by_number_.end() ? nullptr : known->second;
}

ProgressClient* ClientDirectory::find(const GroupName& name) const noexcept {
  const auto known = by_name_.find(name);
  return known == by_name_.end() ? nullptr : known->second;
}

}  // namespace shoal
