// The Verifier itself: hand-written schedules with known faults or none, and mutations of real ones.

#include "src/schedule/verifier.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <random>
#include <set>

#include "src/algorithms/algorithm.h"
#include "src/schedule/describe.h"
#include "src/schedule/layout.h"
#include "src/schedule/units.h"
#include "tests/mentions.h"
#include "tests/schedule/shapes.h"

namespace shoal {
namespace {

using Random = std::mt19937;

Schedule build(std::string_view algorithm, const Topology& topology, Collective collective) {
  auto schedule = build_schedule(**find_algorithm(algorithm), topology, collective);
  EXPECT_TRUE(schedule.ok()) << schedule.status().to_string();
  return *std::move(schedule);
}

Collective all_reduce_of(std::size_t count) { return {CollectiveKind::all_reduce, count, DataType::float32, ReduceOp::sum, 0}; }

constexpr Slice kInput{Buffer::input, 0, 1};
constexpr Slice kOutput{Buffer::output, 0, 1};
constexpr Slice kScratch{Buffer::scratch, 0, 1, 0};
Step send(int peer, Slice source) { return {StepOp::send, peer, 0, source, {}}; }
Step recv(int peer, Slice target) { return {StepOp::recv, peer, 0, {}, target}; }
Step recv_reduce(int peer, Slice source, Slice target) { return {StepOp::recv_reduce, peer, 0, source, target}; }
Step copy(Slice source, Slice target) { return {StepOp::copy, -1, 0, source, target}; }
Step reduce(Slice source, Slice target) { return {StepOp::reduce, -1, 0, source, target}; }

/// An all_reduce of two ranks, one chunk, one lane, one chunk of scratch.
Schedule two_ranks(std::vector<Step> steps_of_0, std::vector<Step> steps_of_1) {
  Schedule schedule{Topology::uniform(1, 2), all_reduce_of(8), {}};
  schedule.programs.push_back({0, "test", 1, 1, 1, std::move(steps_of_0)});
  schedule.programs.push_back({1, "test", 1, 1, 1, std::move(steps_of_1)});
  return schedule;
}

std::set<FaultKind> kinds(const Schedule& schedule) {
  std::set<FaultKind> found;
  for (const Fault& fault : verify(schedule)) {
    EXPECT_FALSE(fault.message.empty());
    found.insert(fault.kind);
  }
  return found;
}

TEST(Verifier, AcceptsAllFiveOperationsAndScratch) {
  // Rank 0 receives into scratch and folds locally; rank 1 receives the result.
  const auto faults = verify(two_ranks({recv(1, kScratch), copy(kInput, kOutput), reduce(kScratch, kOutput), send(1, kOutput)},
                                       {send(0, kInput), recv(0, kOutput)}));
  EXPECT_TRUE(faults.empty()) << to_status(faults).to_string();
  EXPECT_TRUE(to_status(faults).ok());
}

TEST(Verifier, NamesBothEndsOfADeadlock) {
  // Each rank folds first and then sends the result: both wait for the other's send.
  const std::vector<Step> steps_of_0{recv_reduce(1, kInput, kOutput), send(1, kOutput)};
  const std::vector<Step> steps_of_1{recv_reduce(0, kInput, kOutput), send(0, kOutput)};
  const auto faults = verify(two_ranks(steps_of_0, steps_of_1));
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_EQ(faults.front().kind, FaultKind::deadlock);
  EXPECT_THAT(faults.front().message,
              testing::Mentions("rank 0 step 1", "rank 0 step 0", "rank 1 step 1", "rank 1 step 0", "send output[0]"));
}

TEST(Verifier, FindsADeadlockThatNeedsAFullLink) {
  // Both ranks send two messages before they receive one. With one tile in flight per link, the second send blocks. It reads
  // what the receive writes, so the receive never starts.
  std::vector<Step> steps{send(1, kInput), send(1, kScratch), recv(1, kScratch), recv_reduce(1, kInput, kOutput)};
  Schedule schedule = two_ranks({copy(kInput, kScratch)}, {copy(kInput, kScratch)});
  for (int rank = 0; rank < 2; ++rank) {
    for (Step step : steps) {
      step.peer = 1 - rank;
      schedule.programs[static_cast<std::size_t>(rank)].steps.push_back(step);
    }
  }
  EXPECT_EQ(kinds(schedule), std::set{FaultKind::deadlock});
}

TEST(Verifier, FindsFaultsOfInPlaceCalls) {
  // Rank 0 sends its input after folding: correct out of place, but in place the input is overwritten by then.
  const auto faults =
      verify(two_ranks({recv_reduce(1, kInput, kOutput), send(1, kInput)}, {send(0, kInput), recv_reduce(0, kInput, kOutput)}));
  ASSERT_FALSE(faults.empty());
  EXPECT_EQ(faults.front().kind, FaultKind::wrong_result);
  EXPECT_THAT(faults.front().message, ::testing::ContainsRegex("in.place"));
}

TEST(Verifier, FindsASourceThatOverlapsItsTarget) {
  Schedule schedule{Topology::uniform(1, 1), all_reduce_of(8), {}};
  const Slice both{Buffer::output, 0, 2};
  schedule.programs.push_back(
      {0, "test", 4, 0, 1, {copy({Buffer::input, 0, 4}, {Buffer::output, 0, 4}), copy(both, {Buffer::output, 1, 2})}});
  EXPECT_TRUE(kinds(schedule).contains(FaultKind::race));
}

TEST(Verifier, FindsALocalFoldOfTheWrongChunk) {
  Schedule schedule{Topology::uniform(1, 1), all_reduce_of(8), {}};
  schedule.programs.push_back(
      {0, "test", 2, 0, 1, {copy({Buffer::input, 0, 2}, {Buffer::output, 0, 2}), reduce({Buffer::input, 1, 1}, kOutput)}});
  const auto faults = verify(schedule);
  ASSERT_FALSE(faults.empty());
  EXPECT_EQ(faults.front().kind, FaultKind::wrong_result);
  EXPECT_EQ(faults.front().chunk, 0);
  EXPECT_THAT(faults.front().message, testing::Mentions("chunk 1", "chunk 0"));
}

TEST(Verifier, ComparesBytesNotOnlyChunks) {
  // Five elements in two chunks: two and three. The chunks of the message differ in size, so they do not match.
  Schedule schedule{Topology::uniform(1, 2), {CollectiveKind::broadcast, 5, DataType::float32, ReduceOp::sum, 0}, {}};
  schedule.programs.push_back({0, "test", 2, 0, 1, {send(1, {Buffer::output, 0, 1}), send(1, {Buffer::output, 1, 1})}});
  schedule.programs.push_back({1, "test", 2, 0, 1, {recv(0, {Buffer::output, 1, 1}), recv(0, {Buffer::output, 0, 1})}});
  EXPECT_EQ(kinds(schedule), std::set{FaultKind::size_mismatch});
}

TEST(Verifier, IsFastForRingOf256) {
  const auto faults = verify(build("ring", Topology::uniform(32, 8), all_reduce_of(1 << 20)));
  EXPECT_TRUE(faults.empty()) << to_status(faults).to_string();
}

TEST(Verifier, FindsAMissingContributionAmong256) {
  Schedule schedule = build("hierarchical", Topology::uniform(32, 8), all_reduce_of(1 << 20));
  schedule.programs[200].steps.pop_back();
  EXPECT_FALSE(verify(schedule).empty());
}

// ---- Mutations: each puts one fault into a real schedule, and is never harmless. Returns false if it does not apply.

std::vector<std::size_t> steps_with(const Program& program, const std::function<bool(const Step&)>& condition) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    if (condition(program.steps[i])) found.push_back(i);
  }
  return found;
}

bool is_send(const Step& step) { return step.op == StepOp::send; }
bool is_recv(const Step& step) { return step.op == StepOp::recv; }
bool is_recv_reduce(const Step& step) { return step.op == StepOp::recv_reduce; }
bool is_any(const Step&) { return true; }

/// A random step that fulfils `condition`.
std::optional<std::size_t> pick(const Program& program, Random& random, const std::function<bool(const Step&)>& condition) {
  const auto found = steps_with(program, condition);
  if (found.empty()) return std::nullopt;
  return found[random() % found.size()];
}

/// The receive that matches `send` of `program`.
std::size_t matching_receive(const Schedule& schedule, const Program& program, std::size_t send) {
  const int peer = program.steps[send].peer;
  const auto sends = steps_with(program, [&](const Step& step) { return is_send(step) && step.peer == peer; });
  const auto place = static_cast<std::size_t>(std::ranges::find(sends, send) - sends.begin());
  const auto& other = schedule.programs[static_cast<std::size_t>(peer)];
  return steps_with(other, [&](const Step& step) { return !is_send(step) && step.peer == program.rank; })[place];
}

void erase(Program& program, std::size_t step) {
  program.steps.erase(program.steps.begin() + static_cast<std::ptrdiff_t>(step));
}
void insert(Program& program, std::size_t at, Step step) {
  program.steps.insert(program.steps.begin() + static_cast<std::ptrdiff_t>(at), step);
}

struct Mutation {
  std::string_view name;
  bool (*apply)(Schedule& schedule, Program& program, Random& random);
  std::set<FaultKind> expected;  // one of these must be among the faults found
};

bool drop_step(Schedule&, Program& program, Random& random) {
  const auto i = pick(program, random, is_any);
  if (i) erase(program, *i);
  return i.has_value();
}

bool drop_message(Schedule& schedule, Program& program, Random& random) {
  const auto i = pick(program, random, is_send);
  if (!i) return false;
  Program& other = schedule.programs[static_cast<std::size_t>(program.steps[*i].peer)];
  erase(other, matching_receive(schedule, program, *i));
  erase(program, *i);
  return true;
}

bool swap_sends(Schedule&, Program& program, Random& random) {
  const auto i = pick(program, random, is_send);
  if (!i) return false;
  const Step first = program.steps[*i];
  const auto j = pick(program, random, [&](const Step& s) {
    return is_send(s) && s.peer == first.peer && s.source.first_chunk != first.source.first_chunk;
  });
  if (j) std::swap(program.steps[*i].source, program.steps[*j].source);
  return j.has_value();
}

bool wrong_peer(Schedule& schedule, Program& program, Random& random) {
  const auto i = pick(program, random, [](const Step& s) { return s.peer >= 0; });
  const int ranks = schedule.topology.ranks();
  if (!i || ranks < 3) return false;
  int& peer = program.steps[*i].peer;
  const int old = peer;
  while (peer == old || peer == program.rank) peer = static_cast<int>(random() % static_cast<unsigned>(ranks));
  return true;
}

bool peer_out_of_range(Schedule& schedule, Program& program, Random& random) {
  const auto i = pick(program, random, [](const Step& s) { return s.peer >= 0; });
  if (i) program.steps[*i].peer = random() % 2 == 0 ? schedule.topology.ranks() : program.rank;
  return i.has_value();
}

/// The number of positions of `slice` in its buffer.
std::uint32_t places_for(const Schedule& schedule, const Program& program, const Slice& slice) {
  const std::uint32_t chunks =
      slice.buffer == Buffer::scratch
          ? program.scratch_chunks
          : chunks_in(schedule.collective, slice.buffer, schedule.topology.ranks(), program.rank, program.message_chunks).count;
  return chunks - slice.chunk_count + 1;
}

bool wrong_chunk_sent(Schedule& schedule, Program& program, Random& random) {
  const auto i = pick(program, random, is_send);
  if (!i) return false;
  Slice& source = program.steps[*i].source;
  const std::uint32_t places = places_for(schedule, program, source);
  if (source.buffer == Buffer::input || places < 2) return false;
  source.first_chunk = (source.first_chunk + 1 + random() % (places - 1)) % places;
  return true;
}

bool wrong_chunk_received(Schedule& schedule, Program& program, Random& random) {
  const auto i = pick(program, random, is_recv);
  if (!i) return false;
  Slice& target = program.steps[*i].target;
  const std::uint32_t places = places_for(schedule, program, target);
  if (places < 2) return false;
  target.first_chunk = (target.first_chunk + 1 + random() % (places - 1)) % places;
  return true;
}

bool duplicate_reduce(Schedule& schedule, Program& program, Random& random) {
  const auto i = pick(program, random, is_send);
  if (!i) return false;
  Program& other = schedule.programs[static_cast<std::size_t>(program.steps[*i].peer)];
  const std::size_t j = matching_receive(schedule, program, *i);
  Step again = other.steps[j];
  if (!is_recv_reduce(again)) return false;
  again.source = again.target;
  insert(other, j + 1, again);
  insert(program, *i + 1, program.steps[*i]);
  return true;
}

bool recv_instead_of_reduce(Schedule&, Program& program, Random& random) {
  const auto i = pick(program, random, is_recv_reduce);
  if (!i) return false;
  program.steps[*i].op = StepOp::recv;
  program.steps[*i].completes = false;
  return true;
}

bool reduce_instead_of_recv(Schedule&, Program& program, Random& random) {
  const auto i = pick(program, random, is_recv);
  if (!i) return false;
  Step& step = program.steps[*i];
  step.op = StepOp::recv_reduce;
  step.source = step.target;
  return true;
}

bool source_not_yet_written(Schedule&, Program& program, Random& random) {
  const auto i = pick(program, random, [](const Step& s) {
    return s.op != StepOp::recv && s.source.buffer == Buffer::input && s.op != StepOp::copy;
  });
  if (!i) return false;
  // The output at this position is undefined or not yet complete.
  Step& step = program.steps[*i];
  step.source.buffer = Buffer::output;
  return true;
}

bool source_is_stale(Schedule&, Program& program, Random& random) {
  const auto i = pick(program, random, [](const Step& s) { return is_recv_reduce(s) && s.source.buffer == Buffer::output; });
  if (i) program.steps[*i].source.buffer = Buffer::input;
  return i.has_value();
}

bool separate_lane(Schedule&, Program& program, Random& random) {
  // The target of a recv_reduce that a send reads or another fold of the lane writes.
  const auto i = pick(program, random, [&](const Step& fold) {
    return is_recv_reduce(fold) && std::ranges::any_of(program.steps, [&](const Step& other) {
             return &other != &fold && (other.source == fold.target || other.target == fold.target);
           });
  });
  if (i) program.steps[*i].lane = program.lanes++;
  return i.has_value();
}

bool lane_out_of_range(Schedule&, Program& program, Random& random) {
  const auto i = pick(program, random, is_any);
  if (i) program.steps[*i].lane = program.lanes;
  return i.has_value();
}

bool extra_send(Schedule&, Program& program, Random& random) {
  const auto i = pick(program, random, is_send);
  if (i) insert(program, *i, program.steps[*i]);
  return i.has_value();
}

bool extra_recv(Schedule&, Program& program, Random& random) {
  const auto i = pick(program, random, [](const Step& s) { return is_recv(s) || is_recv_reduce(s); });
  if (i) insert(program, *i, program.steps[*i]);
  return i.has_value();
}

bool wrong_root(Schedule& schedule, Program&, Random&) {
  if (!has_root(schedule.collective.kind)) return false;
  schedule.collective.root = (schedule.collective.root + 1) % schedule.topology.ranks();
  return true;
}

bool truncate_one_end(Schedule&, Program& program, Random& random) {
  const auto i = pick(program, random, is_send);
  if (i) --program.steps[*i].source.chunk_count;
  return i.has_value();
}

bool truncate_both_ends(Schedule& schedule, Program& program, Random& random) {
  const auto i = pick(program, random, [](const Step& s) { return is_send(s) && s.source.chunk_count > 1; });
  if (!i) return false;
  Step& step = program.steps[*i];
  Step& other = schedule.programs[static_cast<std::size_t>(step.peer)].steps[matching_receive(schedule, program, *i)];
  --step.source.chunk_count;
  --other.target.chunk_count;
  if (is_recv_reduce(other)) --other.source.chunk_count;
  return true;
}

bool slice_out_of_range(Schedule&, Program& program, Random& random) {
  const auto i = pick(program, random, [](const Step& s) { return !is_send(s); });
  if (i) program.steps[*i].target.first_chunk = program.message_chunks + program.scratch_chunks;
  return i.has_value();
}

bool write_input(Schedule& schedule, Program& program, Random& random) {
  const CollectiveKind kind = schedule.collective.kind;
  if (kind == CollectiveKind::broadcast || kind == CollectiveKind::barrier) return false;
  const auto i = pick(program, random, [](const Step& s) { return !is_send(s); });
  if (i) program.steps[*i].target.buffer = Buffer::input;
  return i.has_value();
}

bool send_before_fold(Schedule&, Program& program, Random& random) {
  // A send moves before an earlier step of its lane that writes its data: it sends an incomplete result, or none.
  const auto j = pick(program, random, [&](const Step& s) { return is_send(s) && s.source.buffer == Buffer::output; });
  if (!j) return false;
  const Step send = program.steps[*j];
  for (std::size_t i = 0; i < *j; ++i) {
    if (is_send(program.steps[i]) || program.steps[i].target != send.source) continue;
    erase(program, *j);
    insert(program, i, send);
    return true;
  }
  return false;
}

bool chunks_differ(Schedule&, Program& program, Random&) {
  program.message_chunks *= 2;
  return true;
}

bool folds_across_differ(Schedule&, Program& program, Random&) {
  program.folds_across_links = !program.folds_across_links;
  return true;
}

// Two folds instead of one: a tile is folded only after all of it was sent on, in place.
bool folds_split(Schedule& schedule, Program& program, Random&) {
  const Topology& topology = schedule.topology;
  if (program.algorithm != "one_shot" || topology.nodes() == 1 || topology.nodes() == topology.ranks()) return false;
  for (Program& each : schedule.programs) each.folds_across_links = false;
  return true;
}

bool wrong_rank(Schedule&, Program& program, Random&) {
  ++program.rank;
  return true;
}

bool program_missing(Schedule& schedule, Program&, Random&) {
  schedule.programs.pop_back();
  return true;
}

bool copy_wrong_chunk(Schedule& schedule, Program& program, Random& random) {
  const auto i = pick(program, random, [](const Step& s) { return s.op == StepOp::copy; });
  if (!i) return false;
  Slice& target = program.steps[*i].target;
  const std::uint32_t places = places_for(schedule, program, target);
  if (places < 2) return false;
  target.first_chunk = (target.first_chunk + 1) % places;
  return true;
}

bool never_divided(Schedule& schedule, Program& program, Random& random) {
  schedule.collective.op = ReduceOp::avg;
  const auto i = pick(program, random, [](const Step& s) { return s.completes; });
  if (i) program.steps[*i].completes = false;
  return i.has_value();
}

bool divided_too_early(Schedule& schedule, Program& program, Random& random) {
  const std::vector<std::uint32_t> units = units_of_steps(schedule.topology, program);
  const auto last_of_a_fold = [&](const Step& s) {
    const auto at = &s - program.steps.data();
    const bool goes_on = std::find(units.begin() + at + 1, units.end(), units[static_cast<std::size_t>(at)]) != units.end();
    return is_recv_reduce(s) && !s.completes && !goes_on;
  };
  const auto i = pick(program, random, last_of_a_fold);
  if (i) program.steps[*i].completes = true;
  return i.has_value();
}

bool copy_divides(Schedule&, Program& program, Random& random) {
  const auto i = pick(program, random, [](const Step& s) { return s.op == StepOp::copy || is_send(s); });
  if (i) program.steps[*i].completes = true;
  return i.has_value();
}

bool scratch_of_another_size(Schedule& schedule, Program& program, Random& random) {
  const ChunkLayout layout(schedule.collective, schedule.topology.ranks(), program.rank, program.message_chunks);
  const auto i = pick(program, random, [](const Step& s) {
    return is_send(s) && s.source.buffer == Buffer::scratch && s.source.chunk_count == 1;
  });
  if (!i) return false;
  Slice& source = program.steps[*i].source;
  const std::size_t bytes = layout.bytes(source).size_bytes;
  for (source.holds = 0; source.holds < program.message_chunks; ++source.holds) {
    if (layout.bytes(source).size_bytes != bytes) return true;
  }
  return false;
}

bool scratch_holds_unknown_chunk(Schedule&, Program& program, Random& random) {
  const auto i = pick(program, random, [](const Step& s) { return is_send(s) && s.source.buffer == Buffer::scratch; });
  if (i) program.steps[*i].source.holds = program.message_chunks;
  return i.has_value();
}

const std::vector<Mutation>& mutations() {
  using enum FaultKind;
  static const std::vector<Mutation> all{
      {"drop_step", drop_step, {unmatched, wrong_result, undefined_read}},
      {"drop_message", drop_message, {wrong_result, undefined_read}},
      {"swap_sends", swap_sends, {wrong_result, size_mismatch, undefined_read, deadlock, race}},
      {"wrong_peer", wrong_peer, {unmatched, size_mismatch}},
      {"peer_out_of_range", peer_out_of_range, {malformed}},
      {"wrong_chunk_sent", wrong_chunk_sent, {wrong_result, undefined_read, size_mismatch, deadlock, race}},
      {"wrong_chunk_received", wrong_chunk_received, {wrong_result, undefined_read, size_mismatch, deadlock, race}},
      {"duplicate_reduce", duplicate_reduce, {wrong_result, size_mismatch, deadlock}},
      {"recv_instead_of_reduce", recv_instead_of_reduce, {wrong_result}},
      {"reduce_instead_of_recv", reduce_instead_of_recv, {undefined_read, wrong_result}},
      {"source_not_yet_written", source_not_yet_written, {undefined_read, malformed, wrong_result}},
      {"source_is_stale", source_is_stale, {wrong_result}},
      {"separate_lane", separate_lane, {race}},
      {"lane_out_of_range", lane_out_of_range, {malformed}},
      {"extra_send", extra_send, {unmatched, size_mismatch}},
      {"extra_recv", extra_recv, {unmatched, size_mismatch}},
      {"wrong_root", wrong_root, {wrong_result, undefined_read, malformed}},
      {"truncate_one_end", truncate_one_end, {malformed, size_mismatch}},
      {"truncate_both_ends", truncate_both_ends, {wrong_result, undefined_read}},
      {"slice_out_of_range", slice_out_of_range, {malformed}},
      {"write_input", write_input, {input_written}},
      {"send_before_fold", send_before_fold, {wrong_result, undefined_read, size_mismatch, deadlock}},
      {"chunks_differ", chunks_differ, {malformed}},
      {"folds_across_differ", folds_across_differ, {malformed}},
      {"folds_split", folds_split, {deadlock}},
      {"wrong_rank", wrong_rank, {malformed}},
      {"program_missing", program_missing, {malformed}},
      {"copy_wrong_chunk", copy_wrong_chunk, {wrong_result, undefined_read, size_mismatch}},
      {"never_divided", never_divided, {wrong_result}},
      {"divided_too_early", divided_too_early, {wrong_result}},
      {"copy_divides", copy_divides, {malformed}},
      {"scratch_of_another_size", scratch_of_another_size, {size_mismatch}},
      {"scratch_holds_unknown_chunk", scratch_holds_unknown_chunk, {malformed}},
  };
  return all;
}

std::vector<Schedule> originals() {
  std::vector<Schedule> all;
  const std::vector<Topology> shapes{Topology::uniform(1, 2),   Topology::uniform(1, 3),     Topology::uniform(2, 2),
                                     Topology::uniform(4, 1),   Topology::ragged({3, 1, 2}), Topology::ragged({1, 5}),
                                     testing::round_robin(7, 3)};
  for (const Topology& shape : shapes) {
    for (const Algorithm& algorithm : algorithms()) {
      for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
        const Collective collective{static_cast<CollectiveKind>(kind), 1'000'003, DataType::float32, ReduceOp::sum, 0};
        // The rounds of a barrier are redundant for some ranks, so not every mutation is a fault.
        if (collective.kind == CollectiveKind::barrier || !algorithm.supports(shape, collective).ok()) continue;
        all.push_back(build(algorithm.name, shape, collective));
      }
    }
  }
  return all;
}

TEST(Verifier, CatchesEveryMutation) {
  const auto schedules = originals();
  std::set<FaultKind> seen;
  for (const Mutation& mutation : mutations()) {
    const unsigned seed = 20251121;
    SCOPED_TRACE(::testing::Message() << mutation.name << ", seed " << seed);
    Random random(seed);
    int applied = 0;
    for (const Schedule& original : schedules) {
      for (int attempt = 0; attempt < 8; ++attempt) {
        Schedule mutant = original;
        Program& program = mutant.programs[random() % mutant.programs.size()];
        const int rank = program.rank;
        if (!mutation.apply(mutant, program, random)) continue;
        ++applied;
        const auto found = kinds(mutant);
        const bool as_expected = std::ranges::any_of(found, [&](FaultKind kind) { return mutation.expected.contains(kind); });
        EXPECT_TRUE(as_expected) << "rank " << rank << " of " << original.programs.front().algorithm << " "
                                 << to_string(original.collective) << " on " << original.topology.shape() << ": "
                                 << (found.empty() ? "nothing found" : to_status(verify(mutant)).to_string());
        seen.insert(found.begin(), found.end());
      }
    }
    EXPECT_GE(applied, 8) << "too rarely applied to prove anything";
  }
  EXPECT_GE(seen.size(), 7U);
}

}  // namespace
}  // namespace shoal
