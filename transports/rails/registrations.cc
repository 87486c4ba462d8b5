#include "transports/rails/registrations.h"

#include <algorithm>

namespace shoal::rails {

RegistrationCache::RegistrationCache(Rail& rail, std::span<std::byte> lasting, const RegistrationLimits& limits)
    : rail_(rail), lasting_(lasting), limits_(limits) {}

void RegistrationCache::drop(std::size_t index) noexcept {
  Entry& entry = *entries_[index];
  rail_.deregister(entry.registration);
  bytes_ -= entry.memory.size();
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(index));
}

bool RegistrationCache::make_room(std::size_t bytes) noexcept {
  while (entries_.size() >= limits_.entries || bytes_ + bytes > limits_.bytes) {
    std::size_t oldest = entries_.size();
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i]->users == 0 && (oldest == entries_.size() || entries_[i]->used_at < entries_[oldest]->used_at))
        oldest = i;
    }
    if (oldest == entries_.size()) return false;
    drop(oldest);
  }
  return true;
}

RegistrationCache::Entry* RegistrationCache::acquire(const std::byte* data, std::size_t bytes, std::uint64_t changes) {
  const auto offset = static_cast<std::size_t>(data - lasting_.data());  // wraps where `data` lies before it
  if (lasting_.empty() || offset >= lasting_.size() || bytes > lasting_.size() - offset) return nullptr;
  if (changes != changes_) {
    changes_ = changes;
    for (std::size_t i = entries_.size(); i-- > 0;) {
      entries_[i]->stale = true;
      if (entries_[i]->users == 0) drop(i);
    }
  }
  ++clock_;
  for (const auto& entry : entries_) {
    if (entry->stale || data < entry->memory.data() || data + bytes > entry->memory.data() + entry->memory.size()) continue;
    ++entry->users;
    entry->used_at = clock_;
    return entry.get();
  }
  const std::size_t begin = offset / kBlockBytes * kBlockBytes;
  const std::size_t end = std::min(lasting_.size(), (offset + bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes);
  const std::span<std::byte> memory = lasting_.subspan(begin, end - begin);
  if (!make_room(memory.size())) return nullptr;
  auto registration = rail_.register_memory(memory, false);
  if (!registration.ok()) return nullptr;
  entries_.push_back(std::make_unique<Entry>(Entry{memory, *registration, 1, clock_, false}));
  bytes_ += memory.size();
  return entries_.back().get();
}

void RegistrationCache::release(Entry& entry) {
  if (--entry.users != 0 || !entry.stale) return;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].get() == &entry) return drop(i);
  }
}

void RegistrationCache::clear() noexcept {
  while (!entries_.empty()) drop(entries_.size() - 1);
}

}  // namespace shoal::rails
