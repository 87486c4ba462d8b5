#include "src/trust/refusals.h"

#include <mutex>

namespace shoal {
namespace {

struct Counted {
  std::mutex mutex;
  Refusals refusals;
};

// Never destroyed: a store's thread may outlive the static objects of a program that ends.
Counted& counted() {
  static auto* const one = new Counted;
  return *one;
}

}  // namespace

void count_refusal(std::string_view listener, std::string_view why) {
  Counted& all = counted();
  const std::lock_guard lock(all.mutex);
  ++all.refusals.count;
  const auto of_listener = all.refusals.by_listener.find(listener);
  if (of_listener != all.refusals.by_listener.end()) {
    ++of_listener->second;
  } else {
    all.refusals.by_listener.emplace(listener, 1);
  }
  all.refusals.last.assign(listener).append(": ").append(why);
}

Refusals refusals() {
  Counted& all = counted();
  const std::lock_guard lock(all.mutex);
  return all.refusals;
}

std::string to_text(const Refusals& refusals) {
  if (refusals.count == 0) return {};
  std::string listeners;
  for (const auto& [listener, count] : refusals.by_listener)
    listeners += (listeners.empty() ? "" : ", ") + listener + " " + std::to_string(count);
  return "refused: " + std::to_string(refusals.count) + (refusals.count == 1 ? " connection (" : " connections (") + listeners +
         "), last: " + refusals.last;
}

}  // namespace shoal
