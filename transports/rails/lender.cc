#include "transports/rails/lender.h"

#include <utility>

#include "transports/rails/hub.h"

namespace shoal::rails {

// If the sender aborts, the rail is redirected to a copy. So any memory may be lent.
bool Lender::can_redirect() const noexcept {
  return remote_.pidfd >= 0 && !shape_.several_rails() && hub_.rail(0)->redirects(remote_.addresses[0]);
}

bool Lender::lend(Loan& loan, std::span<const std::byte> data) {
  if (!hub_.worth_lending(data)) return false;
  loan.may_redirect = can_redirect();
  if (!hub_.in_lasting_memory(data)) {
    if (loan.may_redirect) loan.data = data.data();
    return loan.may_redirect;
  }
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    const Rail* const rail = hub_.rail(r);
    if (rail == nullptr) continue;
    RegistrationCache* const cache = hub_.registrations(r);
    const bool reads_later = remote_.on_this_host && rail->traits().local_peers_read;
    if (!reads_later && cache == nullptr) continue;
    if (!reads_later) loan.entries[r] = cache->acquire(data.data(), data.size(), hub_.lasting_changes());
    if (loan.entries[r] != nullptr) continue;
    end(loan);
    return false;
  }
  loan.data = data.data();
  return true;
}

void Lender::end(Loan& loan) noexcept {
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    RegistrationCache::Entry* const entry = std::exchange(loan.entries[r], nullptr);
    if (entry != nullptr && hub_.rail(r) != nullptr) hub_.registrations(r)->release(*entry);
  }
  loan.data = nullptr;
  loan.may_redirect = false;
}

}  // namespace shoal::rails
