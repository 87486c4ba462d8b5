// A library under test: shoal itself, or a peer loaded at run time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <shoal/communicator.h>
#include <shoal/status.h>
#include <shoal/types.h>

#include "bench/perf/options.h"

namespace shoal::perf {

/// One call, with the same arguments for every library.
struct Call {
  CollectiveKind kind = CollectiveKind::all_reduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::size_t count = 0;        ///< elements of the message, or of one rank's share of it, as in Communicator
  const void* input = nullptr;  ///< unused by broadcast
  void* output = nullptr;
};

/// Thread rule: one thread. Everything but name(), version() and why_unsupported() is collective.
class Library {
 public:
  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  virtual ~Library() = default;

  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string version() const = 0;
  /// "" if the library can make this call, else the reason.
  [[nodiscard]] virtual std::string why_unsupported(const Call& call) const = 0;
  virtual Status run(const Call& call) = 0;
  virtual Status barrier() = 0;
  /// The algorithm and transport of the last call, as far as the library reports them.
  [[nodiscard]] virtual CallReport last_call() const = 0;

  /// Variants of a call. At each size all are tried and the fastest is measured; 1 = only the library's own choice.
  [[nodiscard]] virtual int variants() const { return 1; }
  virtual Status use_variant(int variant) {
    static_cast<void>(variant);
    return {};
  }
};

/// shoal through its public interface. `communicator` must outlive it. `algorithm` is forced only on the measured calls ("" =
/// none), not on the exchanges of the benchmark itself.
std::unique_ptr<Library> make_shoal_library(Communicator& communicator, bool blocking, const std::string& algorithm);

/// Loads libshoal_peer_<name>.so from the folder lib beside the program's, or the file itself if `name` contains a '/'.
/// Collective over `communicator`, which carries the rendezvous: if it fails on one rank it fails on all, with that rank's
/// reason. Errors: not_found (no such peer in this build), unsupported (it cannot start here).
Result<std::unique_ptr<Library>> load_peer(const std::string& name, const Options& options, Communicator& communicator);

}  // namespace shoal::perf
