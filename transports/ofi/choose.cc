#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "transports/ofi/libfabric.h"
#include "transports/rails/wire.h"

namespace shoal::ofi {
namespace {

bool has_name(const Candidate& candidate, const std::string& text) {
  return candidate.device == text || (!candidate.address.empty() && candidate.address == text);
}

std::string list_of(const std::vector<Candidate>& candidates) {
  std::string text;
  std::set<std::string> named;
  for (const Candidate& each : candidates) {
    const std::string name =
        fmt::format("{} on {}{}{}", each.provider, each.device, each.address.empty() ? "" : " ", each.address);
    if (named.insert(name).second) text += (text.empty() ? "" : "; ") + name;
  }
  return text.empty() ? "none" : text;
}

// Indices of the fastest cards, one candidate for each device name: several candidates may be the same card.
std::vector<std::size_t> fastest_cards(const std::vector<Candidate>& candidates, const std::vector<std::size_t>& usable) {
  std::uint64_t fastest = 0;
  for (const std::size_t i : usable) fastest = std::max(fastest, candidates[i].bits_per_second);
  std::vector<std::size_t> cards;
  for (const std::size_t i : usable) {
    const bool known =
        std::any_of(cards.begin(), cards.end(), [&](auto c) { return candidates[c].device == candidates[i].device; });
    if (!known && candidates[i].hardware && candidates[i].bits_per_second == fastest) cards.push_back(i);
  }
  // Device names hold the bus number, without leading zeros: neighbouring cards stay together in this order.
  std::sort(cards.begin(), cards.end(), [&](auto a, auto b) {
    const auto order = [&](auto card) { return std::tuple(candidates[card].device.size(), candidates[card].device); };
    return order(a) < order(b);
  });
  return cards;
}

// libfabric's name is "rdmap79s0-rdm" where the kernel's name is rdmap79s0.
bool is_card(const Candidate& candidate, const std::string& name) {
  return candidate.device == name || candidate.device.starts_with(name + "-");
}

// The cards whose names are in `names`, in that order.
std::vector<std::size_t> named_cards(const std::vector<Candidate>& candidates, const std::vector<std::size_t>& cards,
                                     const std::vector<std::string>& names) {
  std::vector<std::size_t> named;
  for (const std::string& name : names) {
    for (const std::size_t card : cards) {
      if (is_card(candidates[card], name) && named.size() < rails::kMaxRails) named.push_back(card);
    }
  }
  return named;
}

std::vector<std::size_t> share_of(const std::vector<std::size_t>& cards, int share, int shares) {
  const auto count = cards.size();
  const auto part = static_cast<std::size_t>(std::max(share, 0));
  const auto parts = static_cast<std::size_t>(std::max(shares, 1));
  if (count <= parts) return {cards[part % count]};
  std::vector<std::size_t> mine;
  for (std::size_t i = part * count / parts; i < (part + 1) * count / parts && mine.size() < rails::kMaxRails; ++i)
    mine.push_back(cards[i]);
  return mine;
}

}  // namespace

Result<std::vector<std::size_t>> choose(const std::vector<Candidate>& candidates, const RailRequest& request) {
  std::vector<std::size_t> usable;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const bool wanted = request.provider.empty() ? candidates[i].other_hosts : candidates[i].provider == request.provider;
    if (wanted) usable.push_back(i);
  }
  const auto refuse = [&](const std::string& what) {
    return Status(StatusCode::unsupported, fmt::format("ofi: {}; available: {}", what, list_of(candidates)));
  };
  if (usable.empty()) {
    return refuse(request.provider.empty()
                      ? "libfabric has no provider here that sends reliable datagrams to other hosts"
                      : fmt::format("libfabric has no provider '{}' (SHOAL_OFI_PROVIDER) with reliable datagrams here",
                                    request.provider));
  }
  std::stable_sort(usable.begin(), usable.end(), [&](auto a, auto b) {
    const auto rank = [&](const Candidate& c) { return std::tuple(!c.hardware, ~c.bits_per_second, !c.writes); };
    return rank(candidates[a]) < rank(candidates[b]);
  });
  if (!request.devices.empty()) {
    if (request.devices.size() > rails::kMaxRails)
      return refuse(fmt::format("{} rails were requested, at most {} are possible", request.devices.size(), rails::kMaxRails));
    // The best provider that has all requested devices.
    for (const std::size_t first : usable) {
      std::vector<std::size_t> chosen;
      for (const std::string& device : request.devices) {
        for (const std::size_t i : usable) {
          if (candidates[i].provider != candidates[first].provider || !has_name(candidates[i], device)) continue;
          chosen.push_back(i);
          break;
        }
      }
      if (chosen.size() == request.devices.size()) return chosen;
    }
    return refuse(fmt::format("no provider has all of the devices {} (SHOAL_RAILS)", fmt::join(request.devices, ",")));
  }
  const std::string provider = candidates[usable.front()].provider;
  std::erase_if(usable, [&](auto i) { return candidates[i].provider != provider; });
  if (candidates[usable.front()].hardware) {
    const auto cards = fastest_cards(candidates, usable);
    const auto named = named_cards(candidates, cards, request.cards);
    return named.empty() ? share_of(cards, request.share, request.shares) : named;
  }
  for (const std::size_t i : usable) {
    if (has_name(candidates[i], request.near)) return std::vector{i};
  }
  // If the user has named an interface, no other one is used. Providers with an address format of their own have no
  // interface.
  const bool has_addresses = std::any_of(usable.begin(), usable.end(), [&](auto i) { return !candidates[i].address.empty(); });
  if (!request.near.empty() && has_addresses) {
    return refuse(fmt::format("provider {} has no interface or address '{}' (SHOAL_HOST_ADDRESS, or else SHOAL_SOCKET_IFNAME)",
                              provider, request.near));
  }
  for (const std::size_t i : usable) {
    if (!candidates[i].loopback) return std::vector{i};
  }
  return std::vector{usable.front()};
}

}  // namespace shoal::ofi
