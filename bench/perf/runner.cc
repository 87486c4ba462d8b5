#include "bench/perf/runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "bench/perf/agree.h"
#include "bench/perf/pattern.h"
#include "bench/perf/statistics.h"
#include "bench/perf/stuck.h"

namespace shoal::perf {
namespace {

constexpr int kFewestRounds = 5;
constexpr int kMostRounds = 31;
constexpr int kMostIterations = 100000;
constexpr double kLongCall_us = 2e5;
constexpr int kPoison = 0xab;  // an unwritten output must not pass for a result

/// CPU time of this process, all threads.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double us_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

/// The operation that the pattern is made for: a call that does not reduce has plain data as input.
ReduceOp pattern_op(const Call& call) { return reduces(call.kind) ? call.op : ReduceOp::sum; }

void fill_normal(float* to, std::size_t count, int rank) {
  std::mt19937 random(static_cast<std::uint32_t>(rank));
  std::normal_distribution<float> normal;
  std::generate_n(to, count, [&] { return normal(random); });
}

}  // namespace

Result<Runner> Runner::create(Communicator& communicator, const Options& options,
                              std::vector<std::unique_ptr<Library>> libraries, double goodput_gbs) {
  Runner runner(communicator, options, std::move(libraries), goodput_gbs);
  const std::size_t largest = *std::max_element(options.sizes_bytes.begin(), options.sizes_bytes.end());
  const std::size_t one_element_each = sizeof(double) * static_cast<std::size_t>(communicator.size());
  Status allocated;
  const auto allocate = [&](Buffer& buffer, bool shared) {
    if (!allocated.ok()) return;
    Result<Buffer> memory = Buffer::allocate(std::max(largest, one_element_each), shared);
    if (memory.ok()) {
      buffer = *std::move(memory);
    } else {
      allocated = memory.status();
    }
  };
  for (Buffer* buffer : {&runner.buffers_.input, &runner.buffers_.output}) allocate(*buffer, false);
  if (options.shared_memory) {
    for (Buffer* buffer : {&runner.shared_buffers_.input, &runner.shared_buffers_.output}) allocate(*buffer, true);
  }
  if (Status status = agree(communicator, allocated); !status.ok()) return status;
  return runner;
}

std::vector<Runner::Form> Runner::forms() const {
  switch (options_.collective) {
    case CollectiveKind::broadcast:
    case CollectiveKind::barrier:
      return {Form::in_place};
    case CollectiveKind::all_to_all:
      return {Form::out_of_place};
    default:
      if (options_.out_of_place_only) return {Form::out_of_place};
      return {Form::out_of_place, Form::in_place};
  }
}

std::size_t Runner::shares() const {
  return deals_in_shares(options_.collective) ? static_cast<std::size_t>(communicator_.size()) : 1;
}

std::size_t Runner::count_of(DataType type, std::size_t bytes) const {
  if (bytes == 0) return 0;
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): only a type that does not exist has no bytes
  return std::max<std::size_t>(1, bytes / size_of(type) / shares());
}

std::size_t Runner::bytes_of(const Call& call) const { return call.count * size_of(call.type) * shares(); }

Call Runner::bind(Call call, Form form, const Library& library) {
  const bool shared = options_.shared_memory && &library == libraries_.front().get();
  const Buffers& buffers = shared ? shared_buffers_ : buffers_;
  call.output = buffers.output.data();
  call.input = buffers.input.data();
  if (form == Form::out_of_place) return call;
  // If a buffer holds only a share, it is this rank's place in the other buffer.
  const std::size_t own_place =
      deals_in_shares(call.kind) ? call.count * size_of(call.type) * static_cast<std::size_t>(communicator_.rank()) : 0;
  call.input = buffers.output.data();
  if (call.kind == CollectiveKind::reduce_scatter || call.kind == CollectiveKind::scatter) {
    call.output = buffers.output.data() + own_place;
  } else {
    call.input = buffers.output.data() + own_place;
  }
  return call;
}

Result<std::size_t> Runner::check_once(Library& library, const Call& call, Form form, std::uint32_t seed) {
  const Pattern pattern(call.type, pattern_op(call), communicator_.size(), seed);
  const int rank = communicator_.rank();
  const bool is_root = rank == call.root;
  const std::size_t all = call.count * shares();
  const auto own_place = static_cast<std::size_t>(rank) * call.count;
  // The elements that this rank sends and receives.
  std::size_t given = call.count;
  std::size_t got = all;
  if (call.kind == CollectiveKind::broadcast) given = 0;
  if (call.kind == CollectiveKind::reduce_scatter || call.kind == CollectiveKind::all_to_all) given = all;
  if (call.kind == CollectiveKind::scatter) given = is_root ? all : 0;
  if (call.kind == CollectiveKind::reduce_scatter || call.kind == CollectiveKind::scatter) got = call.count;
  if (call.kind == CollectiveKind::reduce || call.kind == CollectiveKind::gather) got = is_root ? all : 0;

  auto* output = static_cast<std::byte*>(call.output);
  std::memset(output, kPoison, got * size_of(call.type));
  pattern.fill(const_cast<void*>(call.input), given, rank);
  if (call.kind == CollectiveKind::broadcast && is_root) pattern.fill(output, call.count, rank);
  if (Status status = library.run(call); !status.ok()) return status;

  std::size_t wrong = 0;
  // Compares the inputs of all ranks from `first` on, one share after the other.
  const auto check_shares = [&](std::size_t first) {
    for (int source = 0; source < communicator_.size(); ++source) {
      const std::size_t at = static_cast<std::size_t>(source) * call.count * size_of(call.type);
      wrong += pattern.count_wrong_input(output + at, call.count, source, first);
    }
  };
  switch (call.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::reduce:
      wrong = pattern.count_wrong_result(output, got);
      break;
    case CollectiveKind::reduce_scatter:
      // In place, MPI's result is in front of all shares.
      if (form == Form::in_place && library.name() == "openmpi") output -= own_place * size_of(call.type);
      wrong = pattern.count_wrong_result(output, got, own_place);
      break;
    case CollectiveKind::broadcast:
      wrong = pattern.count_wrong_input(output, got, call.root);
      break;
    case CollectiveKind::scatter:
      wrong = pattern.count_wrong_input(output, got, call.root, own_place);
      break;
    case CollectiveKind::all_gather:
      check_shares(0);
      break;
    case CollectiveKind::gather:
      if (is_root) check_shares(0);
      break;
    case CollectiveKind::all_to_all:
      check_shares(own_place);
      break;
    case CollectiveKind::barrier:
    case CollectiveKind::send:
    case CollectiveKind::receive:
      break;
  }
  if (form == Form::out_of_place) wrong += pattern.count_wrong_input(call.input, given, rank);
  return wrong;
}

/// Runs calls until they have lasted long enough to compute how many fill a block. Rank 0's clock decides for all.
Result<Runner::Pace> Runner::calibrate(Library& library, const Call& call) {
  const double target_us = options_.block_ms * 1e3;
  int iterations = 1;
  int done = 0;
  for (;;) {
    Result<Block> block = run_block(library, call, {iterations, iterations > 1 ? 1 : 0});
    if (!block.ok()) return block.status();
    done += iterations;
    const double us = std::max(block->us_per_call, 1e-3);
    const int fill = static_cast<int>(std::clamp(target_us / us, 1.0, static_cast<double>(kMostIterations)));
    const bool warm = done >= options_.warmup_iterations || us > target_us;
    // The first call may include opening connections: only a longer block, or a second one, gives the time of a call.
    const bool enough = done > 1 && warm && (iterations * 4 >= fill || iterations * us >= target_us / 2);
    // A block that is long enough is repeated with the same length, so that no calls that take seconds are wasted.
    const int longer = fill <= iterations ? iterations : std::clamp(fill, iterations + 1, iterations * 8);
    Result<double> next = decide(communicator_, enough ? -fill : longer);
    if (!next.ok()) return next.status();
    if (*next < 0) {
      const int chosen = options_.iterations > 0 ? options_.iterations : static_cast<int>(-*next);
      Result<double> lasts_us = decide(communicator_, us);
      if (!lasts_us.ok()) return lasts_us.status();
      if (chosen == 1 && *lasts_us >= kLongCall_us) return Pace{chosen, 0};
      return Pace{chosen, std::max(1, static_cast<int>(options_.settle_ms * 1e3 / std::max(*lasts_us, 1.0)))};
    }
    iterations = static_cast<int>(*next);
  }
}

Result<Runner::Block> Runner::run_block(Library& library, const Call& call, Pace pace) {
  if (Status status = communicator_.barrier(); !status.ok()) return status;
  const Stuck stuck(fmt::format("rank {} in {} of {} bytes by {}", communicator_.rank(), to_string(call.kind), bytes_of(call),
                                library.name()));
  for (int i = 0; i < pace.untimed; ++i) {
    if (Status status = library.run(call); !status.ok()) return status;
  }
  if (Status status = library.barrier(); !status.ok()) return status;
  const double cpu_before = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < pace.iterations; ++i) {
    if (Status status = library.run(call); !status.ok()) return status;
  }
  const double us = us_since(start);
  return Block{us / pace.iterations, cpu_seconds() - cpu_before};
}

/// Tries the library's variants of this call and keeps the one that is fastest by rank 0's clock.
Status Runner::choose_variant(Library& library, const Call& call) {
  if (library.variants() < 2 || call.kind != CollectiveKind::all_reduce) return {};
  constexpr double kSlow_us = 1e5;
  int best = 0;
  double best_us = 0;
  for (int variant = 0; variant < library.variants(); ++variant) {
    if (Status status = library.use_variant(variant); !status.ok()) return status;
    if (best_us > kSlow_us) {  // one call identifies slow variants; more calls of them would take minutes
      Result<Block> block = run_block(library, call, {});
      if (!block.ok()) return block.status();
      Result<double> us = decide(communicator_, block->us_per_call);
      if (!us.ok()) return us.status();
      if (*us > 2 * best_us) continue;
    }
    Result<Pace> pace = calibrate(library, call);
    if (!pace.ok()) return pace.status();
    std::vector<double> times;
    for (bool more = true; more;) {
      Result<Block> block = run_block(library, call, *pace);
      if (!block.ok()) return block.status();
      times.push_back(block->us_per_call);
      Result<double> go_on = decide(communicator_, times.size() < 3 && block->us_per_call < kSlow_us ? 1 : 0);
      if (!go_on.ok()) return go_on.status();
      more = *go_on > 0;
    }
    Result<double> us = decide(communicator_, median(times));
    if (!us.ok()) return us.status();
    if (variant == 0 || *us < best_us) {
      best = variant;
      best_us = *us;
    }
  }
  return library.use_variant(best);
}

Status Runner::prepare(Replica& replica, const Call& call) {
  for (int i = 0; i < options_.check_iterations; ++i) {
    Result<std::size_t> wrong = check_once(*replica.library, call, replica.form, static_cast<std::uint32_t>(i));
    if (!wrong.ok()) return wrong.status();
    replica.wrong += *wrong;
  }
  if (options_.check_iterations == 0) {
    if (Status status = replica.library->run(call); !status.ok()) return status;
  }
  replica.report = replica.library->last_call();
  Result<Pace> pace = calibrate(*replica.library, call);
  if (!pace.ok()) return pace.status();
  replica.pace = *pace;
  return {};
}

Result<int> Runner::choose_rounds(const std::vector<double>& us_per_block) {
  double us = 0;
  for (const double block_us : us_per_block) us += block_us;
  const double fit = options_.seconds_per_size * 1e6 / std::max(us, 1.0);
  const double rounds = std::clamp(fit, static_cast<double>(kFewestRounds), static_cast<double>(kMostRounds));
  Result<double> decided = decide(communicator_, options_.rounds > 0 ? options_.rounds : rounds);
  if (!decided.ok()) return decided.status();
  return static_cast<int>(*decided);
}

Status Runner::run_rounds(std::vector<Replica>& replicas, const Call& call) {
  int rounds = 1;  // the first round determines how many rounds fit
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < replicas.size(); ++turn) {
      Replica& replica = replicas[(turn + static_cast<std::size_t>(round)) % replicas.size()];
      Result<Block> block = run_block(*replica.library, bind(call, replica.form, *replica.library), replica.pace);
      if (!block.ok()) return block.status();
      replica.block_us.push_back(block->us_per_call);
      replica.block_cpu_s.push_back(block->cpu_s);
    }
    if (round > 0) continue;
    std::vector<double> us_per_block;
    for (const Replica& replica : replicas)
      us_per_block.push_back(replica.block_us[0] * (replica.pace.iterations + replica.pace.untimed));
    Result<int> decided = choose_rounds(us_per_block);
    if (!decided.ok()) return decided.status();
    rounds = *decided;
  }
  return {};
}

/// Combines the replicas' times, CPU seconds and wrong elements over all ranks.
Status Runner::combine_ranks(std::vector<Replica>& replicas) {
  for (Replica& replica : replicas) {
    std::vector<double> own = replica.block_us;
    own.insert(own.end(), replica.block_cpu_s.begin(), replica.block_cpu_s.end());
    own.push_back(static_cast<double>(replica.wrong));
    Result<std::vector<std::vector<double>>> all = gather(communicator_, own);
    if (!all.ok()) return all.status();
    const std::size_t rounds = replica.block_us.size();
    for (std::size_t round = 0; round < rounds; ++round) {
      std::vector<double> of_ranks;
      for (const auto& rank : *all) of_ranks.push_back(rank[round]);
      replica.block_us[round] = combine(of_ranks, options_.rank_time);
      replica.block_cpu_s[round] = 0;
      for (const auto& rank : *all) replica.block_cpu_s[round] += rank[rounds + round];
    }
    replica.wrong = 0;
    for (const auto& rank : *all) replica.wrong += static_cast<std::size_t>(rank[2 * rounds]);
  }
  return {};
}

Record Runner::record_of(const Replica& replica, const Call& call) const {
  Record record;
  record.library = replica.library->name();
  record.collective = call.kind;
  record.type = call.type;
  record.op = call.op;
  record.ranks = communicator_.size();
  record.nodes = communicator_.nodes();
  record.transport = replica.report.transport;
  record.algorithm = replica.report.algorithm;
  record.bytes = bytes_of(call);
  record.wrong = replica.wrong;
  set_figures(record, replica.block_us, median(replica.block_cpu_s) / replica.pace.iterations, goodput_gbs_);
  return record;
}

Result<std::vector<Row>> Runner::measure(DataType type, ReduceOp op, std::size_t bytes) {
  Call call;
  call.kind = options_.collective;
  call.type = type;
  call.op = op;
  call.root = options_.root;
  call.count = count_of(type, bytes);

  std::vector<Row> rows;
  std::vector<Replica> replicas;
  for (const auto& library : libraries_) {
    Row row;
    row.library = library->name();
    row.bytes = bytes_of(call);
    row.count = call.count;
    row.root = has_root(call.kind) ? call.root : -1;
    row.unsupported = library->why_unsupported(call);
    rows.push_back(row);
    if (!row.unsupported.empty()) continue;
    if (Status status = choose_variant(*library, bind(call, forms().front(), *library)); !status.ok()) return status;
    for (const Form form : forms()) {
      Replica replica;
      replica.library = library.get();
      replica.form = form;
      if (Status status = prepare(replica, bind(call, form, *library)); !status.ok()) return status;
      replicas.push_back(std::move(replica));
    }
  }
  for (const auto& library : libraries_) {
    if (!options_.normal_data) break;
    auto* input = static_cast<float*>(const_cast<void*>(bind(call, forms().front(), *library).input));
    fill_normal(input, call.count * shares(), communicator_.rank());
  }
  if (Status status = run_rounds(replicas, call); !status.ok()) return status;
  if (Status status = combine_ranks(replicas); !status.ok()) return status;
  for (const Replica& replica : replicas) {
    const auto row =
        std::find_if(rows.begin(), rows.end(), [&](const Row& each) { return each.library == replica.library->name(); });
    Record record = record_of(replica, call);
    const auto shoal = std::find_if(replicas.begin(), replicas.end(), [&](const Replica& each) {
      return each.library == libraries_.front().get() && each.form == replica.form;
    });
    if (shoal != replicas.end() && shoal->library != replica.library)
      record.time_over_shoal = paired_ratio(replica.block_us, shoal->block_us);
    (replica.form == Form::out_of_place ? row->out_of_place : row->in_place) = record;
  }
  return rows;
}

}  // namespace shoal::perf
