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
  all.refusals.last.assign(listener).append(": ").append(why);
}

Refusals refusals() {
  Counted& all = counted();
  const std::lock_guard lock(all.mutex);
  return all.refusals;
}

}  // namespace shoal
