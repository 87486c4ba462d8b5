#include "src/progress/overlay/rank_runs.h"

#include <algorithm>
#include <cstdint>

namespace shoal {
namespace {

/// `count` runs of `length` ranks; each begins `stride` ranks after the one before.
struct Stripes {
  std::uint32_t first = 0;
  std::uint32_t length = 0;
  std::uint32_t stride = 0;
  std::uint32_t count = 0;
};

enum class Form : std::uint32_t { stripes = 0, bit_map = 1 };

std::vector<Stripes> stripes_of(const std::vector<RankRuns::Run>& runs) {
  std::vector<Stripes> all;
  for (const RankRuns::Run& run : runs) {
    const auto first = static_cast<std::uint32_t>(run.first);
    const auto length = static_cast<std::uint32_t>(run.last - run.first + 1);
    if (!all.empty() && all.back().length == length) {
      Stripes& last = all.back();
      const std::uint32_t distance = first - (last.first + (last.count - 1) * last.stride);
      if (last.count == 1) last.stride = distance;
      if (last.stride == distance) {
        ++last.count;
        continue;
      }
    }
    all.push_back({first, length, length, 1});
  }
  return all;
}

}  // namespace

RankRuns RankRuns::of(std::span<const int> ranks) {
  RankRuns set;
  for (const int rank : ranks) set.insert(rank);
  return set;
}

RankRuns RankRuns::from_to(int first, int last) {
  RankRuns set;
  set.runs_.push_back({first, last});
  return set;
}

void RankRuns::insert(const Run& run) {
  // From the first run that ends next to `run` or later, to the first that begins beyond it: these become one.
  const auto from = std::ranges::lower_bound(runs_, run.first - 1, {}, &Run::last);
  const auto to = std::ranges::upper_bound(runs_, run.last + 1, {}, &Run::first);
  if (from >= to) {
    runs_.insert(from, run);
    return;
  }
  const Run joined{std::min(run.first, from->first), std::max(run.last, std::prev(to)->last)};
  *from = joined;
  runs_.erase(std::next(from), to);
}

void RankRuns::insert(const RankRuns& other) {
  for (const Run& run : other.runs_) insert(run);
}

RankRuns RankRuns::without(const RankRuns& other) const {
  RankRuns result;
  for (Run run : runs_) {
    auto hole = std::ranges::lower_bound(other.runs_, run.first, {}, &Run::last);
    for (; hole != other.runs_.end() && hole->first <= run.last; ++hole) {
      if (run.first < hole->first) result.runs_.push_back({run.first, hole->first - 1});
      run.first = hole->last + 1;
    }
    if (run.first <= run.last) result.runs_.push_back(run);
  }
  return result;
}

bool RankRuns::contains(int rank) const noexcept {
  const auto run = std::ranges::lower_bound(runs_, rank, {}, &Run::last);
  return run != runs_.end() && run->first <= rank;
}

std::size_t RankRuns::count() const noexcept {
  std::size_t count = 0;
  for (const Run& run : runs_) count += static_cast<std::size_t>(run.last - run.first + 1);
  return count;
}

void RankRuns::append_to(ByteWriter& bytes) const {
  const std::vector<Stripes> stripes = stripes_of(runs_);
  const std::size_t map_bytes = runs_.empty() ? 0 : static_cast<std::size_t>(runs_.back().last) / 8 + 1;
  if (stripes.size() * sizeof(Stripes) <= map_bytes || runs_.empty()) {
    bytes.put(Form::stripes);
    bytes.put(static_cast<std::uint32_t>(stripes.size()));
    for (const Stripes& each : stripes) {
      for (const std::uint32_t field : {each.first, each.length, each.stride, each.count}) bytes.put(field);
    }
    return;
  }
  std::vector<std::byte> map(map_bytes);
  each([&](int rank) { map[static_cast<std::size_t>(rank) / 8] |= std::byte{1} << (rank % 8); });
  bytes.put(Form::bit_map);
  bytes.put_sized(map);
}

std::optional<RankRuns> RankRuns::read_from(ByteReader& bytes, int ranks) {
  RankRuns set;
  const auto form = bytes.get<Form>();
  const auto size = bytes.get<std::uint32_t>();
  const auto limit = static_cast<std::uint64_t>(ranks);
  if (form == Form::bit_map) {
    const auto map = bytes.get_bytes(size);
    for (std::size_t at = 0; at < map.size() * 8; ++at) {
      if ((map[at / 8] >> (at % 8) & std::byte{1}) == std::byte{0}) continue;
      if (at >= limit) return std::nullopt;
      set.insert(static_cast<int>(at));
    }
    return bytes.ok() ? std::optional(set) : std::nullopt;
  }
  if (form != Form::stripes || size > bytes.left() / sizeof(Stripes)) return std::nullopt;
  std::uint64_t beyond = 0;  // all ranks so far are below
  for (std::uint32_t i = 0; i < size; ++i) {
    Stripes each;
    for (std::uint32_t* field : {&each.first, &each.length, &each.stride, &each.count}) *field = bytes.get<std::uint32_t>();
    if (each.length == 0 || each.count == 0 || each.stride < each.length || each.first < beyond) return std::nullopt;
    beyond = each.first + std::uint64_t{each.count - 1} * each.stride + each.length;
    if (beyond > limit) return std::nullopt;
    for (std::uint32_t k = 0; k < each.count; ++k) {
      const auto first = static_cast<int>(each.first + k * each.stride);
      set.insert(Run{first, first + static_cast<int>(each.length) - 1});
    }
  }
  return bytes.ok() ? std::optional(set) : std::nullopt;
}

}  // namespace shoal
