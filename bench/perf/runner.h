// Measures the libraries in alternation.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <shoal/communicator.h>
#include <shoal/status.h>
#include <shoal/types.h>

#include "bench/perf/buffer.h"
#include "bench/perf/library.h"
#include "bench/perf/options.h"
#include "bench/perf/record.h"

namespace shoal::perf {

/// At each size the libraries take turns in rounds: a turn is a block of calls, long enough to be timed, and the order of the
/// turns rotates from round to round. A row's latency is the median over the rounds of (time of the block / calls), so that
/// disturbances of the machine affect all libraries equally.
///
/// Between two turns the ranks synchronize in shoal's barrier, which blocks if cores are scarce, so that no rank keeps
/// polling in another library. Then the library of the turn makes untimed calls: one to warm the caches, or enough for the
/// after-effects of the previous library to fade (--settle-ms), none if a call takes long. Its own barrier follows.
///
/// Thread rule: one thread; every method is collective.
class Runner {
 public:
  /// `libraries[0]` is shoal. `goodput_gbs` is 0 if no limit is known. Errors: system_error if memory is short, on any rank.
  static Result<Runner> create(Communicator& communicator, const Options& options,
                               std::vector<std::unique_ptr<Library>> libraries, double goodput_gbs);

  /// One row for each library, shoal's first, with equal figures on every rank.
  Result<std::vector<Row>> measure(DataType type, ReduceOp op, std::size_t bytes);

 private:
  enum class Form { out_of_place, in_place };
  /// The number of calls in a block.
  struct Pace {
    int iterations = 1;
    int untimed = 0;  ///< calls at the start that do not count
  };
  /// A library and a form, which together take a turn.
  struct Replica {
    Library* library = nullptr;
    Form form = Form::in_place;
    Pace pace;
    CallReport report;
    std::size_t wrong = 0;
    std::vector<double> block_us;     ///< per call, by round
    std::vector<double> block_cpu_s;  ///< of the whole block, by round
  };
  struct Block {
    double us_per_call = 0;
    double cpu_s = 0;
  };

  Runner(Communicator& communicator, const Options& options, std::vector<std::unique_ptr<Library>> libraries,
         double goodput_gbs)
      : communicator_(communicator), options_(options), libraries_(std::move(libraries)), goodput_gbs_(goodput_gbs) {}

  [[nodiscard]] std::vector<Form> forms() const;
  [[nodiscard]] std::size_t shares() const;
  [[nodiscard]] std::size_t count_of(DataType type, std::size_t bytes) const;
  [[nodiscard]] std::size_t bytes_of(const Call& call) const;
  [[nodiscard]] Call bind(Call call, Form form, const Library& library);

  Status choose_variant(Library& library, const Call& call);
  Status prepare(Replica& replica, const Call& call);
  Result<std::size_t> check_once(Library& library, const Call& call, Form form, std::uint32_t seed);
  Result<Pace> calibrate(Library& library, const Call& call);
  Result<int> choose_rounds(const std::vector<double>& us_per_block);
  Result<Block> run_block(Library& library, const Call& call, Pace pace);
  Status run_rounds(std::vector<Replica>& replicas, const Call& call);
  Status combine_ranks(std::vector<Replica>& replicas);
  [[nodiscard]] Record record_of(const Replica& replica, const Call& call) const;

  Communicator& communicator_;
  const Options& options_;
  std::vector<std::unique_ptr<Library>> libraries_;
  double goodput_gbs_;
  struct Buffers {
    Buffer input;
    Buffer output;
  };
  Buffers buffers_;
  Buffers shared_buffers_;  // for shoal, if it has buffers of its own
};

}  // namespace shoal::perf
