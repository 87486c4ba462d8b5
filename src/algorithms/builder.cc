#include "src/algorithms/builder.h"

#include <algorithm>
#include <cassert>
#include <deque>
#include <utility>

namespace shoal {

ProgramBuilder::ProgramBuilder(int ranks, const Collective& collective, int rank, std::uint32_t message_chunks,
                               std::uint32_t lanes)
    : reduces_(reduces(collective.kind)),
      joins_shares_(collective.counts.empty() || collective.kind == CollectiveKind::all_gather),
      input_(chunks_in(collective, Buffer::input, ranks, rank, message_chunks)),
      output_(chunks_in(collective, Buffer::output, ranks, rank, message_chunks)),
      place_(message_chunks, Place::nowhere),
      last_folds_(reduces_ ? message_chunks : 0, kNone) {
  program_.rank = rank;
  program_.message_chunks = message_chunks;
  program_.lanes = lanes;
  // As a ring and a direct exchange need: a vector that grows copies thousands of steps several times.
  program_.steps.reserve(2 * std::size_t{message_chunks});
  // A broadcast works in one buffer, and a barrier has no data: the steps of both name only the output.
  if (input_.count == 0) std::fill_n(place_.begin() + output_.first, output_.count, Place::output);
  std::fill_n(place_.begin() + input_.first, input_.count, Place::input);
}

void ProgramBuilder::send(int peer, const Shard& shard) {
  program_.steps.push_back({StepOp::send, peer, shard.lane, value(shard), {}});
}

void ProgramBuilder::recv(int peer, const Shard& shard) {
  program_.steps.push_back({StepOp::recv, peer, shard.lane, {}, write(shard)});
  if (reduces_) std::fill_n(last_folds_.begin() + shard.first, shard.count, kNone);
}

void ProgramBuilder::recv_reduce(int peer, const Shard& shard) {
  const Slice source = value(shard);
  if (reduces_) std::fill_n(last_folds_.begin() + shard.first, shard.count, static_cast<std::uint32_t>(program_.steps.size()));
  program_.steps.push_back({StepOp::recv_reduce, peer, shard.lane, source, write(shard)});
}

void ProgramBuilder::copy_to_output(const Shard& shard) {
  const Slice source = value(shard);
  const Slice target = write(shard);
  if (source != target) program_.steps.push_back({StepOp::copy, -1, shard.lane, source, target});
}

void ProgramBuilder::forget(const Shard& shard) {
  if (!fits_output(shard)) forgotten_.push_back({program_.steps.size(), shard});
}

Program ProgramBuilder::finish(std::string algorithm) && {
  program_.algorithm = std::move(algorithm);
  if (reduces_) mark_completions();
  if (uses_scratch_) place_scratch();
  program_.steps.shrink_to_fit();
  return std::move(program_);
}

bool ProgramBuilder::fits_output(const Shard& shard) const noexcept {
  return shard.first >= output_.first && shard.first + shard.count <= output_.first + output_.count;
}

Slice ProgramBuilder::slice(Place place, const Shard& shard) const {
  if (place == Place::input) return {Buffer::input, shard.first - input_.first, shard.count};
  if (place == Place::output) return {Buffer::output, shard.first - output_.first, shard.count};
  return {Buffer::scratch, 0, shard.count, shard.first};  // place_scratch() sets the place in scratch once all uses are known
}

Slice ProgramBuilder::value(const Shard& shard) const {
  const auto begin = place_.begin() + shard.first;
  const Place place = *begin;
  assert(place != Place::nowhere && std::all_of(begin, begin + shard.count, [&](Place chunk) { return chunk == place; }));
  return slice(place, shard);
}

Slice ProgramBuilder::write(const Shard& shard) {
  const Place place = fits_output(shard) ? Place::output : Place::scratch;
  std::fill_n(place_.begin() + shard.first, shard.count, place);
  uses_scratch_ |= place == Place::scratch;
  return slice(place, shard);
}

// The result of a chunk is the last fold into it after which it is not received again, if this rank keeps the chunk.
void ProgramBuilder::mark_completions() {
  for (std::uint32_t chunk = output_.first; chunk < output_.first + output_.count; ++chunk) {
    if (last_folds_[chunk] != kNone) program_.steps[last_folds_[chunk]].completes = true;
  }
}

// Chunks that travel together must be adjacent: then every chunk has a place of its own, in the order of the message.
// Otherwise a chunk's place is reused by another chunk of its lane once its value is forgotten.
void ProgramBuilder::place_scratch() {
  std::vector<std::uint32_t> place_of(program_.message_chunks, kNone);
  std::vector<Slice*> slices;
  std::vector<std::size_t> step_of;
  bool together = false;
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    for (Slice* slice : {&program_.steps[i].source, &program_.steps[i].target}) {
      if (slice->buffer != Buffer::scratch) continue;
      slices.push_back(slice);
      step_of.push_back(i);
      together |= slice->chunk_count > 1;
      for (std::uint32_t k = 0; k < slice->chunk_count; ++k) place_of[slice->holds + k] = 0;
    }
  }
  if (together) {
    for (std::uint32_t& place : place_of) {
      if (place != kNone) place = program_.scratch_chunks++;
    }
    for (Slice* slice : slices) slice->first_chunk = place_of[slice->holds];
    return;
  }
  std::ranges::fill(place_of, kNone);
  std::vector<std::deque<std::uint32_t>> free(program_.lanes);
  auto next = forgotten_.begin();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    for (; next != forgotten_.end() && next->before <= step_of[i]; ++next) {
      for (std::uint32_t chunk = next->shard.first; chunk < next->shard.first + next->shard.count; ++chunk) {
        if (place_of[chunk] != kNone) free[next->shard.lane].push_back(std::exchange(place_of[chunk], kNone));
      }
    }
    std::uint32_t& place = place_of[slices[i]->holds];
    auto& reusable = free[program_.steps[step_of[i]].lane];
    if (place == kNone && !reusable.empty()) {
      place = reusable.front();
      reusable.pop_front();
    } else if (place == kNone) {
      place = program_.scratch_chunks++;
    }
    slices[i]->first_chunk = place;
  }
}

}  // namespace shoal
