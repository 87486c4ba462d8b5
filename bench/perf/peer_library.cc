// A peer: a shared object behind the C interface of peer.h.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "bench/perf/agree.h"
#include "bench/perf/library.h"
#include "bench/perf/peer.h"

namespace shoal::perf {
namespace {

class PeerLibrary final : public Library {
 public:
  explicit PeerLibrary(const shoal_peer* peer) : peer_(peer) {}
  ~PeerLibrary() override { peer_->finalize(); }

  [[nodiscard]] std::string name() const override { return peer_->name; }
  [[nodiscard]] std::string version() const override { return peer_->version(); }
  [[nodiscard]] std::string why_unsupported(const Call& call) const override {
    const char* why =
        peer_->why_unsupported(static_cast<int>(call.kind), static_cast<int>(call.type), static_cast<int>(call.op), call.count);
    return why != nullptr ? why : "";
  }
  Status run(const Call& call) override {
    if (call.kind == CollectiveKind::barrier) return barrier();
    const shoal_peer_call same{static_cast<int>(call.kind),
                               static_cast<int>(call.type),
                               static_cast<int>(call.op),
                               call.root,
                               call.count,
                               call.input,
                               call.output};
    return outcome(peer_->run(&same));
  }
  Status barrier() override { return outcome(peer_->barrier()); }
  [[nodiscard]] CallReport last_call() const override { return {peer_->variant_name(variant_), peer_->transport, 0}; }
  [[nodiscard]] int variants() const override { return peer_->variants(); }
  Status use_variant(int variant) override {
    variant_ = variant;
    return outcome(peer_->use_variant(variant));
  }

 private:
  [[nodiscard]] Status outcome(int code) const {
    if (code == 0) return {};
    return Status(StatusCode::system_error, fmt::format("{}: {}", peer_->name, peer_->last_error()));
  }

  const shoal_peer* peer_;
  int variant_ = 0;
};

/// Peers are in lib/, beside the bin/ of this program.
std::filesystem::path path_of_peer(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return program.parent_path().parent_path() / "lib" / fmt::format("libshoal_peer_{}.so", name);
}

Result<const shoal_peer*> open_peer(const std::string& name) {
  const std::filesystem::path path = path_of_peer(name);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return Status(StatusCode::not_found,
                  fmt::format("--peer {}: {} does not exist; known peers are openmpi (built where MPI is found) "
                              "and gloo (built where LibTorch and Gloo's headers are found)",
                              name, path.string()));
  }
  // Never closed: libraries of this size do not support being unloaded.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Status(StatusCode::unsupported, fmt::format("--peer {}: {}", name, dlerror()));
  const auto get = reinterpret_cast<decltype(&shoal_peer_get)>(dlsym(handle, "shoal_peer_get"));
  if (get == nullptr)
    return Status(StatusCode::unsupported, fmt::format("--peer {}: {} is not a peer of shoal_perf", name, path.string()));
  const shoal_peer* peer = get();
  if (peer->interface_number != SHOAL_PEER_INTERFACE) {
    return Status(StatusCode::unsupported,
                  fmt::format("--peer {}: {} has interface {}, this program needs {}; build both together", name, path.string(),
                              peer->interface_number, SHOAL_PEER_INTERFACE));
  }
  return peer;
}

int exchange(void* context, void* data, std::size_t bytes, int root) {
  return static_cast<Communicator*>(context)->broadcast(data, bytes, DataType::uint8, root).ok() ? 0 : 1;
}

}  // namespace

Result<std::unique_ptr<Library>> load_peer(const std::string& name, const Options& options, Communicator& communicator) {
  Result<const shoal_peer*> peer = open_peer(name);
  if (Status status = agree(communicator, peer.status()); !status.ok()) return status;
  shoal_peer_config config{};
  config.rank = communicator.rank();
  config.size = communicator.size();
  config.timeout_s = options.timeout_s;
  config.try_all_algorithms = options.all_openmpi_algorithms ? 1 : 0;
  config.host_address = std::getenv("SHOAL_HOST_ADDRESS");
  config.exchange = exchange;
  config.exchange_context = &communicator;
  Status started;
  if ((*peer)->init(&config) != 0)
    started = Status(StatusCode::unsupported, fmt::format("--peer {}: {}", name, (*peer)->last_error()));
  if (Status status = agree(communicator, started); !status.ok()) return status;
  return std::unique_ptr<Library>(std::make_unique<PeerLibrary>(*peer));
}

}  // namespace shoal::perf
