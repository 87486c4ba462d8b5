#include "src/progress/overlay/wait_summary.h"

#include <algorithm>

#include "src/progress/overlay/message.h"

namespace shoal {

void WaitSummary::add(int rank, const std::optional<WaitingCall>& its_call, const GroupName& group, std::uint64_t sequence) {
  if (!its_call || !(its_call->group == group)) {
    ++late;
    add_name({rank, its_call});
    return;
  }
  ++waiting;
  if (its_call->sequence != sequence) return;
  add_call({its_call->call, rank, 1});
}

void WaitSummary::add(const WaitSummary& other) {
  hosts += other.hosts;
  waiting += other.waiting;
  late += other.late;
  for (const LateRank& each : other.names) add_name(each);
  for (const SameCall& each : other.calls) add_call(each);
}

void WaitSummary::add_name(const LateRank& rank) {
  names.insert(std::ranges::upper_bound(names, rank.rank, {}, &LateRank::rank), rank);
  if (names.size() > kMostNames) names.pop_back();
}

void WaitSummary::add_call(const SameCall& same) {
  const auto known = std::ranges::find(calls, same.call, &SameCall::call);
  if (known == calls.end()) {
    calls.push_back(same);
  } else {
    known->ranks += same.ranks;
    known->lowest_rank = std::min(known->lowest_rank, same.lowest_rank);
  }
  std::ranges::stable_sort(calls, [](const SameCall& a, const SameCall& b) {
    return a.ranks != b.ranks ? a.ranks > b.ranks : a.lowest_rank < b.lowest_rank;
  });
  if (calls.size() > 2) calls.pop_back();
}

bool WaitSummary::is_sound() const noexcept {
  std::uint64_t in_call = 0;
  for (const SameCall& each : calls) in_call += each.ranks;
  const bool ascending =
      std::ranges::adjacent_find(names, [](const LateRank& a, const LateRank& b) { return a.rank >= b.rank; }) == names.end();
  return names.size() == std::min<std::size_t>(late, kMostNames) && calls.size() <= 2 && in_call <= waiting && ascending;
}

void WaitSummary::append_to(ByteWriter& bytes) const {
  for (const std::uint32_t field : {hosts, waiting, late}) bytes.put(field);
  bytes.put(static_cast<std::uint8_t>(names.size()));
  for (const LateRank& each : names) {
    bytes.put(static_cast<std::uint32_t>(each.rank));
    bytes.put(static_cast<std::uint8_t>(each.instead.has_value()));
    if (each.instead) append_call(bytes, *each.instead);
  }
  bytes.put(static_cast<std::uint8_t>(calls.size()));
  for (const SameCall& each : calls) {
    bytes.put(each.call);
    bytes.put(static_cast<std::uint32_t>(each.lowest_rank));
    bytes.put(each.ranks);
  }
}

std::optional<WaitSummary> WaitSummary::read_from(ByteReader& bytes, int ranks) {
  WaitSummary sum;
  for (std::uint32_t* field : {&sum.hosts, &sum.waiting, &sum.late}) *field = bytes.get<std::uint32_t>();
  const auto names = bytes.get<std::uint8_t>();
  for (std::size_t i = 0; i < names && bytes.ok(); ++i) {
    LateRank each{bytes.get_below(ranks), std::nullopt};
    if (bytes.get<std::uint8_t>() != 0) each.instead = read_call(bytes);
    sum.names.push_back(each);
  }
  const auto calls = bytes.get<std::uint8_t>();
  for (std::size_t i = 0; i < calls && bytes.ok(); ++i) {
    SameCall each;
    each.call = bytes.get<CallSignature>();
    each.lowest_rank = bytes.get_below(ranks);
    each.ranks = bytes.get<std::uint32_t>();
    sum.calls.push_back(each);
  }
  return bytes.ok() && sum.is_sound() ? std::optional(sum) : std::nullopt;
}

}  // namespace shoal
