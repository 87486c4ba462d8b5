// shoal_perf: times shoal's collectives and, on request, other libraries in the same processes.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <shoal/communicator.h>

#include "bench/perf/agree.h"
#include "bench/perf/goodput.h"
#include "bench/perf/library.h"
#include "bench/perf/machine.h"
#include "bench/perf/options.h"
#include "bench/perf/plot.h"
#include "bench/perf/runner.h"
#include "bench/perf/table.h"

namespace {

using namespace shoal;
using namespace shoal::perf;

constexpr int kOk = 0;
constexpr int kFailed = 1;    // a wrong result, too little bandwidth, or a failure during the run
constexpr int kBadInput = 2;  // an invalid command line, or one that this machine cannot fulfil

/// This rank's number from the launcher, before there is a communicator: only one rank reports errors.
bool is_rank_0() {
  for (const char* name : {"SHOAL_RANK", "OMPI_COMM_WORLD_RANK", "RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name); value != nullptr) return std::string(value) == "0";
  }
  return true;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

int exit_code(const Status& status) {
  switch (status.code()) {
    case StatusCode::ok:
      return kOk;
    case StatusCode::invalid_argument:
    case StatusCode::unsupported:
    case StatusCode::not_found:
      return kBadInput;
    default:
      return kFailed;
  }
}

/// Prints an error once. A rank above 0 prints what rank 0 may not print: a failure that is not the consequence of another
/// rank's, and the loss of a rank, which may be rank 0.
int report(const Status& status) {
  const int code = exit_code(status);
  const bool own = code == kFailed && status.code() != StatusCode::aborted;
  if (is_rank_0() || own) fmt::print(stderr, "shoal_perf: {}\n", status.to_string());
  return code;
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

/// One run: everything between the start of the communicator and the exit code.
class Job {
 public:
  Job(Communicator& communicator, const Options& options, std::string command)
      : communicator_(communicator), options_(options), command_(std::move(command)), prints_(communicator.rank() == 0) {}

  Status run() {
    if (options_.root >= communicator_.size()) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("-r {}: the job has only {} ranks", options_.root, communicator_.size()));
    }
    if (Status status = check_outputs(); !status.ok()) return status;
    Result<Runner> runner = make_runner();
    if (!runner.ok()) return runner.status();
    if (Status status = print_head(); !status.ok()) return status;
    for (int cycle = 0; options_.cycles == 0 || cycle < options_.cycles; ++cycle) {
      for (const DataType type : options_.types) {
        for (const ReduceOp op : options_.ops) {
          if (!supports(type, op)) continue;
          if (Status status = run_call(*runner, type, op); !status.ok()) return status;
        }
      }
    }
    print_tail();
    return write_outputs();
  }

  [[nodiscard]] bool passes() const {
    return total_wrong(rows_) == 0 &&
           (options_.min_bandwidth_gbs <= 0 || average_busbw_gbs(rows_) >= options_.min_bandwidth_gbs);
  }

 private:
  template <typename... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    if (!prints_) return;
    fmt::print(format, std::forward<Arguments>(arguments)...);
    std::fflush(stdout);
  }

  /// Unwritable files must be found before an hour of measuring, not after.
  Status check_outputs() {
    Status status;
    for (const std::string& path : {options_.json_path, options_.plot_path}) {
      if (!prints_ || path.empty() || std::ofstream(path, std::ios::app).good()) continue;
      status = Status(StatusCode::invalid_argument, fmt::format("cannot write {}", path));
    }
    return agree(communicator_, status);
  }

  Result<Runner> make_runner() {
    std::vector<std::unique_ptr<Library>> libraries;
    libraries.push_back(make_shoal_library(communicator_, options_.blocking, options_.algorithm));
    for (const std::string& name : options_.peers) {
      Result<std::unique_ptr<Library>> peer = load_peer(name, options_, communicator_);
      if (!peer.ok()) return peer.status();
      libraries.push_back(*std::move(peer));
    }
    for (const auto& library : libraries) {
      versions_[library->name()] = library->version();
      if (library != libraries.front()) peers_.push_back(library->name());
    }
    double goodput_gbs = 0;
    if (options_.measure_limit && communicator_.nodes() > 1) {
      Result<double> goodput = measure_goodput(communicator_);
      if (!communicator_.status().ok()) return communicator_.status();
      if (goodput.ok()) goodput_gbs = *goodput;
      limit_note_ = goodput.ok() ? fmt::format("{:.4g} GB/s of TCP goodput per node and direction", goodput_gbs)
                                 : fmt::format("not measured: {}", goodput.status().message());
    }
    return Runner::create(communicator_, options_, std::move(libraries), goodput_gbs);
  }

  Status print_head() {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    Result<std::vector<std::string>> places = gather_text(communicator_, fmt::format("Pid {:>6} on {}", getpid(), host));
    if (!places.ok()) return places.status();
    print(
        "# {}: {} ranks on {} nodes; a row's time is the median of rounds in which the libraries take turns; GB = 1e9 bytes\n",
        to_string(options_.collective), communicator_.size(), communicator_.nodes());
    for (const auto& [library, version] : versions_.items()) print("#  {} {}\n", library, version.get<std::string>());
    if (!limit_note_.empty()) print("#  limit: {}\n", limit_note_);
    for (std::size_t rank = 0; rank < places->size(); ++rank) print("#  Rank {:>3} {}\n", rank, (*places)[rank]);
    print("#\n{}", table_header());
    return {};
  }

  Status run_call(Runner& runner, DataType type, ReduceOp op) {
    for (const std::size_t bytes : options_.sizes_bytes) {
      Result<std::vector<Row>> measured = runner.measure(type, op, bytes);
      if (!measured.ok()) return measured.status();
      for (const Row& row : *measured) {
        print("{}", table_row(row, type, op));
        rows_.push_back(row);
      }
    }
    return {};
  }

  void print_tail() const {
    print("{}", table_tail(total_wrong(rows_), average_busbw_gbs(rows_)));
    for (const std::string& peer : peers_) print("{}", ratio_lines(rows_, peer));
    if (options_.min_bandwidth_gbs > 0 && average_busbw_gbs(rows_) < options_.min_bandwidth_gbs) {
      print("# Below the required {} GB/s: FAILED\n", options_.min_bandwidth_gbs);
    }
  }

  Status write_outputs() {
    Status status;
    if (prints_) {
      const std::string document_text = document(describe_machine(versions_), command_, rows_).dump(1) + "\n";
      if (!options_.json_path.empty()) status = write(options_.json_path, document_text);
      if (status.ok() && !options_.plot_path.empty()) status = write_plot(document_text);
    }
    return agree(communicator_, status);
  }

  static Status write(const std::string& path, const std::string& text) {
    std::ofstream file(path, std::ios::trunc);
    file << text << std::flush;
    return file.good() ? Status() : Status(StatusCode::system_error, fmt::format("writing {} failed", path));
  }

  [[nodiscard]] Status write_plot(const std::string& document_text) const {
    if (!options_.json_path.empty()) return draw(options_.json_path, options_.plot_path);
    const std::string beside = options_.plot_path + ".json";
    if (Status status = write(beside, document_text); !status.ok()) return status;
    Status status = draw(beside, options_.plot_path);
    std::remove(beside.c_str());
    return status;
  }

  Communicator& communicator_;
  const Options& options_;
  std::string command_;
  bool prints_;
  nlohmann::ordered_json versions_ = nlohmann::ordered_json::object();
  std::vector<std::string> peers_;
  std::string limit_note_;
  std::vector<Row> rows_;
};

int run(const std::vector<std::string>& arguments) {
  Result<ParsedOptions> parsed = parse_options(arguments, environment("NCCL_TESTS_MIN_BW"));
  if (!parsed.ok()) return report(parsed.status());
  if (parsed->show_help) {
    if (is_rank_0()) fmt::print("{}", parsed->help);
    return kOk;
  }
  const Options& options = parsed->options;
  CommunicatorOptions communicator_options = Communicator::options_from_environment();
  communicator_options.timeout = std::chrono::seconds(options.timeout_s);
  if (!options.transports.empty()) communicator_options.transports = options.transports;
  Result<std::unique_ptr<Communicator>> communicator = Communicator::create(communicator_options);
  if (!communicator.ok()) return report(communicator.status());

  Job job(**communicator, options, "shoal_perf " + join(arguments));
  if (Status status = job.run(); !status.ok()) {
    // If only this rank has failed, in another library, the other ranks must be told.
    if (exit_code(status) == kFailed) (*communicator)->abort(status.message());
    return report(status);
  }
  return job.passes() ? kOk : kFailed;
}

}  // namespace

int main(int argc, char** argv) {
  const int code = run(std::vector<std::string>(argv + 1, argv + argc));
  std::fflush(stdout);
  return code;
}
