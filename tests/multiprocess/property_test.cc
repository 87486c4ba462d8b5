// Random sequences of collectives and messages on a communicator and on groups, in flight together, some between group_begin
// and group_end, compared with call_model.h: on threads of this process, where sanitizers see all accesses, and on real
// processes.
//
// SHOAL_TEST_SEED=n runs sequence n on every group of ranks; SHOAL_TEST_SEEDS=n sets the number of sequences in all.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tests/multiprocess/call_model.h"
#include "tests/multiprocess/message_model.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

using testing::MessagePart;
using testing::ModelBuffers;
using testing::ModelCall;
using testing::ModelMessages;

constexpr std::uint64_t kSequences = 2000;   // on threads
constexpr std::uint64_t kOnProcesses = 100;  // of each group

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// A communicator on which steps are made; null on ranks that are not in it.
struct Scope {
  Communicator* communicator = nullptr;
  int size = 0;
};

/// Makes a group of random ranks in random order, or splits by color: the same choice on every rank. `made` is null on ranks
/// that are not in the group.
Status make_group(Communicator& world, std::mt19937_64& random, std::unique_ptr<Communicator>& made, int& size) {
  const auto p = static_cast<std::size_t>(world.size());
  std::vector<int> ranks(p);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), random);
  const bool splits = random() % 2 == 0;
  ranks.resize(1 + random() % p);
  const auto place = std::ranges::find(ranks, world.rank());
  size = static_cast<int>(ranks.size());
  if (!splits && place == ranks.end()) return {};
  Result<std::unique_ptr<Communicator>> group =
      splits ? world.split(place == ranks.end() ? -1 : 3, static_cast<int>(place - ranks.begin())) : world.group(ranks);
  if (!group.ok()) return group.status();
  made = std::move(group).value();
  return {};
}

/// One step of a sequence, a collective or messages, and this rank's part in it.
struct Step {
  const Scope* on = nullptr;
  bool sends = false;
  ModelCall call;
  ModelMessages messages;
  std::unique_ptr<ModelBuffers> buffers;
  std::unique_ptr<MessagePart> part;
  Work work;

  Status post() {
    Communicator& communicator = *on->communicator;
    if (sends) {
      part = std::make_unique<MessagePart>(messages, communicator.rank());
      return part->post(communicator);
    }
    buffers = std::make_unique<ModelBuffers>(call, communicator.rank());
    auto started = testing::make_call(communicator, call, *buffers);
    if (!started.ok()) return started.status();
    work = *std::move(started);
    return {};
  }
  /// Waits. Empty if the result matches the model, else what is wrong.
  std::string finish() {
    if (sends) return part->finish();
    if (const Status status = work.wait(); !status.ok()) return status.to_string();
    return buffers->check();
  }
};

/// Runs a sequence, the same on every rank. Each rank waits for its steps in another order.
std::string run_sequence(Communicator& world, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<Communicator>> groups(random() % 2 == 0 ? 0 : 1 + random() % 2);
  std::vector<Scope> scopes{{&world, world.size()}};
  for (auto& group : groups) {
    Scope scope;
    if (const Status status = make_group(world, random, group, scope.size); !status.ok())
      return fmt::format("seed {} rank {} of {}: no group: {}", seed, world.rank(), world.size(), status.to_string());
    scope.communicator = group.get();
    scopes.push_back(scope);
  }
  const std::size_t largest = random() % 4 == 0 ? 60'000 : 2'000;
  const bool together = random() % 4 == 0;
  std::vector<Step> steps(1 + random() % 6);
  for (std::size_t k = 0; k < steps.size(); ++k) {
    Step& step = steps[k];
    step.on = &scopes[random() % scopes.size()];
    step.sends = random() % 4 == 0;
    if (step.sends) {
      // The tag contains the seed, so that a message of the next sequence never matches a recv of this one.
      const int own_tag = static_cast<int>(seed % 10'000'000 * 8 + k);
      step.messages = testing::random_messages(random, step.on->size, largest, own_tag);
    } else {
      step.call = testing::random_call(random, step.on->size, largest);
    }
  }
  const auto error = [&](std::size_t k, const std::string& what) {
    return fmt::format("seed {} rank {} of {} step {} on {} ranks{} ({}): {}", seed, world.rank(), world.size(), k,
                       steps[k].on->size, together ? ", between begin and end" : "",
                       steps[k].sends ? steps[k].messages.text() : steps[k].call.text(), what);
  };
  if (together) Communicator::group_begin();
  for (std::size_t k = 0; k < steps.size(); ++k) {
    if (steps[k].on->communicator == nullptr) continue;
    if (const Status status = steps[k].post(); !status.ok()) return error(k, status.to_string());
  }
  if (together) {
    if (const Status status = Communicator::group_end(); !status.ok()) return error(0, status.to_string());
  }
  std::vector<std::size_t> order(steps.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937_64 own(seed * 31 + static_cast<std::uint64_t>(world.rank()));
  std::shuffle(order.begin(), order.end(), own);
  for (const std::size_t k : order) {
    if (steps[k].on->communicator == nullptr) continue;
    if (const std::string wrong = steps[k].finish(); !wrong.empty()) return error(k, wrong);
  }
  std::shuffle(groups.begin(), groups.end(), own);
  while (!groups.empty()) groups.pop_back();
  return {};
}

std::string run_sequences(Communicator& communicator, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    if (std::string error = run_sequence(communicator, seed); !error.empty()) return error;
  }
  return {};
}

struct Group {
  int ranks;
  const char* transports;
};

void PrintTo(const Group& group, std::ostream* out) { *out << group.ranks << " ranks over " << group.transports; }

class Property : public ::testing::TestWithParam<Group> {
 protected:
  static CommunicatorOptions options() {
    CommunicatorOptions options;
    options.transports = GetParam().transports;
    options.timeout = std::chrono::seconds(60);
    return options;
  }
};

const std::vector<Group> kGroups{{2, "shm"}, {3, "shm"}, {4, "shm"}, {6, "shm"},
                                 {2, "tcp"}, {3, "tcp"}, {4, "tcp"}, {5, "tcp"}};

std::uint64_t sequences_of_a_group() {
  return (from_environment("SHOAL_TEST_SEEDS", kSequences) + kGroups.size() - 1) / kGroups.size();
}

// This test comes first, because a process that forks must not run a progress thread yet.
TEST_P(Property, RandomCallsMatchModelOnProcesses) {
  const Group group = GetParam();
  const std::uint64_t one = from_environment("SHOAL_TEST_SEED", 0);
  const std::uint64_t first = one != 0 ? one : 77'000'000 + static_cast<std::uint64_t>(group.ranks) * 1'000;
  testing::expect_ranks(group.ranks, options(), [&](Communicator& communicator) {
    return run_sequences(communicator, first, one != 0 ? 1 : std::min(kOnProcesses, sequences_of_a_group()));
  });
}

TEST_P(Property, RandomCallsMatchModelOnThreads) {
  const Group group = GetParam();
  std::string pattern = (std::filesystem::temp_directory_path() / "shoal-property-XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const std::uint64_t one = from_environment("SHOAL_TEST_SEED", 0);
  const std::uint64_t count = one != 0 ? 1 : sequences_of_a_group();
  const auto place = static_cast<std::uint64_t>(group.ranks) * 2 + (group.transports[0] == 't' ? 1 : 0);
  const std::uint64_t first = one != 0 ? one : 1'000'000 * place;
  fmt::print("seeds {} to {}\n", first, first + count - 1);
  std::vector<std::string> errors(static_cast<std::size_t>(group.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& error = errors[static_cast<std::size_t>(rank)];
      auto communicator = testing::join(pattern, rank, group.ranks, options());
      if (!communicator.ok()) {
        error = communicator.status().to_string();
        return;
      }
      error = run_sequences(**communicator, first, count);
      if (!error.empty()) (*communicator)->abort(error);
    });
  }
  for (auto& thread : threads) thread.join();
  std::filesystem::remove_all(pattern);
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

INSTANTIATE_TEST_SUITE_P(, Property, ::testing::ValuesIn(kGroups),
                         [](const auto& info) { return fmt::format("{}_{}", info.param.ranks, info.param.transports); });

}  // namespace
}  // namespace shoal
