#include "src/diagnosis/straggler_detector.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <shoal/limits.h>

namespace shoal {
namespace {

using std::chrono::milliseconds;
using Time = StragglerDetector::Clock::time_point;
using Span = StragglerDetector::Clock::duration;

constexpr Span kLeastWait = milliseconds(20);   // before the first message: most waits are shorter
constexpr Span kTellFirst = milliseconds(400);  // at the latest, for the first message
constexpr Span kMostLead = milliseconds(400);
constexpr Span kMostGrace = milliseconds(100);
constexpr Span kJustTold = milliseconds(10);  // a message sent so recently answers a question

/// The header in front of the two sets. Each set: the numbers of its parts that are not empty, in ascending order, then the
/// parts.
struct Front {
  std::uint64_t sequence = 0;
  std::uint32_t asks = 0;
  std::uint16_t absent_parts = 0;  // of 64 ranks each
  std::uint16_t slow_parts = 0;
  CallSignature call;
};
static_assert(sizeof(Front) == 40, "sent as bytes: no padding");

using Number = std::uint16_t;  // of a part
using Part = std::uint64_t;
constexpr std::size_t kBytesOfPart = sizeof(Number) + sizeof(Part);
static_assert(sizeof(Front) + 2 * StragglerDetector::kMostParts * kBytesOfPart <= StragglerDetector::kMostBytes);
constexpr std::size_t kPartsOfJob = (kMaxJobRanks + RankSet::kPartRanks - 1) / RankSet::kPartRanks;
static_assert(kPartsOfJob <= std::numeric_limits<Number>::max());

std::uint16_t parts_of(const RankSet& set) {
  const auto parts = std::ranges::count_if(set.parts(), [](Part part) { return part != 0; });
  return static_cast<std::uint16_t>(std::min(static_cast<std::size_t>(parts), StragglerDetector::kMostParts));
}

/// Writes the first `count` parts; returns the end.
std::byte* write(const RankSet& set, std::size_t count, std::byte* to) {
  std::byte* parts = to + count * sizeof(Number);
  for (std::size_t number = 0, written = 0; written < count; ++number) {
    const Part part = set.parts()[number];
    if (part == 0) continue;
    const auto as_sent = static_cast<Number>(number);
    std::memcpy(to + written * sizeof as_sent, &as_sent, sizeof as_sent);
    std::memcpy(parts + written * sizeof part, &part, sizeof part);
    ++written;
  }
  return parts + count * sizeof(Part);
}

/// False where these are not the bytes of a set.
bool read(std::span<const std::byte> bytes, RankSet& set) {
  const std::size_t count = bytes.size() / kBytesOfPart;
  const std::byte* parts = bytes.data() + count * sizeof(Number);
  for (std::size_t i = 0, next = 0; i < count; ++i) {
    Number number;
    Part part;
    std::memcpy(&number, bytes.data() + i * sizeof number, sizeof number);
    std::memcpy(&part, parts + i * sizeof part, sizeof part);
    if (part == 0 || number < next || number >= kPartsOfJob) return false;
    set.insert_part(number, part);
    next = std::size_t{number} + 1;
  }
  return true;
}

}  // namespace

std::vector<std::byte> StragglerDetector::to_bytes(const Words& words) {
  const Front front{words.sequence, words.asks != 0 ? 1U : 0U, parts_of(words.absent), parts_of(words.slow), words.call};
  std::vector<std::byte> bytes(sizeof front + kBytesOfPart * (std::size_t{front.absent_parts} + front.slow_parts));
  std::memcpy(bytes.data(), &front, sizeof front);
  write(words.slow, front.slow_parts, write(words.absent, front.absent_parts, bytes.data() + sizeof front));
  return bytes;
}

std::optional<StragglerDetector::Words> StragglerDetector::parse(std::span<const std::byte> bytes) {
  Front front;
  if (bytes.size() < sizeof front) return std::nullopt;
  std::memcpy(&front, bytes.data(), sizeof front);
  const std::span<const std::byte> sets = bytes.subspan(sizeof front);
  const std::size_t absent_bytes = kBytesOfPart * front.absent_parts;
  if (front.absent_parts > kMostParts || front.slow_parts > kMostParts ||
      sets.size() != absent_bytes + kBytesOfPart * front.slow_parts)
    return std::nullopt;
  Words words;
  if (!read(sets.first(absent_bytes), words.absent) || !read(sets.subspan(absent_bytes), words.slow)) return std::nullopt;
  words.sequence = front.sequence;
  words.asks = front.asks;
  words.call = front.call;
  return words;
}

StragglerDetector::StragglerDetector(int rank, int ranks)
    : rank_(rank), ranks_(static_cast<std::size_t>(ranks)), asked_in_(ranks_) {}

bool StragglerDetector::due(std::uint64_t oldest_call, Time deadline, Time now) {
  const Span left = std::max(deadline - now, Span::zero());
  if (oldest_call != sequence_) {
    sequence_ = oldest_call;
    since_ = now;
    // Early enough to arrive before a short deadline.
    tell_after_ = std::clamp(left / 3, kLeastWait, kTellFirst);
    tell_at_ = now + tell_after_;
    told_at_ = Time::min();
    askers_.erase(askers_.begin(), askers_.begin() + static_cast<std::ptrdiff_t>(answered_));
    answered_ = 0;
    asking_ = heard_more_ = false;
    std::fill(asked_in_.begin(), asked_in_.end(), false);
  }
  if (deadline != deadline_) {
    deadline_ = deadline;
    lead_ = std::min(std::clamp(left / 4, kLeastWait, kMostLead), left);
    asked_ = false;
  }
  if (asked_by_others_ && has_few_ranks() && told_at_ != Time::min() && now - told_at_ < kJustTold) asked_by_others_ = false;
  return asked_by_others_ || heard_more_ || now >= tell_at_ || (!asked_ && now >= deadline_ - lead_);
}

StragglerDetector::Words StragglerDetector::tell(const Late& late, Time now) {
  // Of many ranks, those that cause the wait as far as this rank knows: whoever asks then skips the ranks in between.
  const Verdict known = has_few_ranks() ? Verdict{late.absent, late.slow, {}} : verdict(sequence_, late);
  Words words{sequence_, 0, set_of(known.absent), set_of(known.slow), {}};
  by_time_ = now >= tell_at_;
  asking_ |= by_time_;
  while (now >= tell_at_) {
    tell_after_ *= 2;
    tell_at_ = since_ + tell_after_;
  }
  if (!asked_ && now >= deadline_ - lead_) {
    asked_ = true;
    asked_at_ = now;
    words.asks = 1;
    // A rank that was stopped until after a deadline may never have checked this call, nor later ones.
    if (now >= deadline_) excused_until_ = now + kMostGrace;
  }
  told_at_ = now;
  asked_by_others_ = heard_more_ = false;
  return words;
}

StragglerDetector::Receivers StragglerDetector::receivers(const Words& words, const Late& late) {
  Receivers to;
  const bool last = words.asks != 0;
  to.all = has_few_ranks() || (last && ranks_ <= kMostAsked);
  if (has_few_ranks()) return to;
  if (last) std::fill(asked_in_.begin(), asked_in_.end(), false);  // only new answers count now
  asking_ |= last;
  if (to.all) {
    answered_ = askers_.size();  // they are among all
  } else {
    // Those that have been answered learn what has changed since.
    const bool changed = by_time_ && (words.absent != told_.absent || words.slow != told_.slow);
    to.told.assign(askers_.begin() + static_cast<std::ptrdiff_t>(changed ? 0 : answered_), askers_.end());
    answered_ = askers_.size();
    // Not to answer alone: the ranks asked would ask in turn, and might do so in a later call, and so on for ever.
    const Verdict silent = asking_ ? verdict(sequence_, late) : Verdict();
    for (const auto* ranks : {&silent.absent, &silent.slow}) {
      for (const int rank : *ranks) {
        if (!asked_in_[static_cast<std::size_t>(rank)]) to.asked.push_back(rank);
        asked_in_[static_cast<std::size_t>(rank)] = true;
      }
    }
  }
  told_ = words;
  return to;
}

void StragglerDetector::hear(int rank, const Words& words, Time now) {
  heard_[rank] = {words, now};
  asked_by_others_ |= words.asks != 0;
  if (has_few_ranks()) return;
  heard_more_ |= asking_ && words.sequence == sequence_;
  if (words.asks == 0) return;
  const auto known = std::ranges::find(askers_, rank);
  if (known == askers_.end()) {
    askers_.push_back(rank);
  } else if (known - askers_.begin() < static_cast<std::ptrdiff_t>(answered_)) {
    std::swap(*known, askers_[--answered_]);  // it asks again
  }
}

Time StragglerDetector::next() const { return std::min(tell_at_, asked_ ? Time::max() : deadline_ - lead_); }

Time StragglerDetector::verdict_at(Time deadline) const {
  const Time at = std::max(deadline, excused_until_);
  return asked_ ? std::max(at, asked_at_ + std::min(lead_, kMostGrace)) : at;
}

// Once this rank has asked all ranks, only answers count, about whichever call: an earlier wait may be over. A rank that sent
// a message just before it was asked does not send it again.
bool StragglerDetector::counts(const Heard& heard, std::uint64_t call) const {
  if (heard.words.sequence == kNoCall) return false;
  return asked_ ? heard.at >= asked_at_ - kJustTold : heard.words.sequence == call;
}

StragglerDetector::Verdict StragglerDetector::verdict(std::uint64_t call, const Late& late) const {
  std::vector<int> next = late.absent;
  next.insert(next.end(), late.slow.begin(), late.slow.end());
  std::vector<bool> met(ranks_);
  std::vector<bool> in_call(ranks_);  // as some rank has seen
  for (const int rank : late.slow) in_call[static_cast<std::size_t>(rank)] = true;
  std::vector<int> silent;
  Verdict verdict;
  met[static_cast<std::size_t>(rank_)] = true;
  for (std::size_t direct = next.size(), k = 0; k < next.size(); ++k) {
    const auto rank = static_cast<std::size_t>(next[k]);
    if (met[rank]) continue;
    met[rank] = true;
    const auto its = heard_.find(next[k]);
    if (its == heard_.end() || !counts(its->second, call)) {
      silent.push_back(next[k]);
      continue;
    }
    if (k < direct) verdict.waiting.push_back(next[k]);
    for (std::size_t peer = 0; peer < ranks_; ++peer) {
      const bool slow = its->second.words.slow.contains(static_cast<int>(peer));
      if (slow) in_call[peer] = true;
      if (slow || its->second.words.absent.contains(static_cast<int>(peer))) next.push_back(static_cast<int>(peer));
    }
  }
  // All ranks wait for each other: report only what this rank sees itself.
  if (silent.empty()) return {late.absent, late.slow, {}};
  std::ranges::sort(silent);
  std::ranges::sort(verdict.waiting);
  for (const int rank : silent) (in_call[static_cast<std::size_t>(rank)] ? verdict.slow : verdict.absent).push_back(rank);
  return verdict;
}

}  // namespace shoal
