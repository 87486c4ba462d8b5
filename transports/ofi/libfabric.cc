#include "transports/ofi/libfabric.h"

#include <fmt/format.h>

#ifndef SHOAL_HAS_LIBFABRIC

namespace shoal::ofi {
namespace {
Status not_built() {
  return {StatusCode::unsupported, "ofi: this build is without libfabric; build again where libfabric-dev is installed"};
}
}  // namespace

Result<std::shared_ptr<Fabric>> libfabric() { return not_built(); }
Result<std::vector<OfiProvider>> libfabric_providers() { return not_built(); }

}  // namespace shoal::ofi

#else

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_rma.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "src/base/quiet_thread.h"
#include "src/trust/proof.h"

namespace shoal::ofi {
namespace {

static_assert(kAgain == -FI_EAGAIN);
static_assert(sizeof(fi_context2) <= sizeof(Operation::provider));

// Versions of libfabric's interface that this code supports; it requests the newest one that the library has. From 1.18 on,
// provider efa uses the RDMA of p4d's and p5's cards by default. From 1.20 on, fi_cq_readerr() fills in an entry that is
// longer than the one of older headers.
constexpr std::uint32_t kOldestApi = FI_VERSION(1, 17);
constexpr std::uint32_t kNewestApi = FI_VERSION(1, 18);
constexpr std::size_t kMinQueue = 1024;
constexpr int kKeyTries = 1000;  // some keys may be in use

// Endpoint options by number, which is part of libfabric's binary interface. In the headers they are enumerators, so the
// preprocessor cannot test for them; and the library may be newer than the headers.
constexpr int kCudaApiPermitted = 10;                // bool: FI_OPT_CUDA_API_PERMITTED, rdma/fi_endpoint.h of 1.18
constexpr int kSharedMemoryPermitted = 11;           // bool: FI_OPT_SHARED_MEMORY_PERMITTED, the same of 1.21
constexpr int kEfaRnrRetry = -(0xefa << 16);         // size_t: FI_OPT_EFA_RNR_RETRY, rdma/fi_ext.h of 1.17
constexpr int kEfaEmulatedWrite = kEfaRnrRetry + 2;  // bool: FI_OPT_EFA_EMULATED_WRITE, the same of 1.18
static_assert(kCudaApiPermitted == FI_OPT_XPU_TRIGGER + 1 && kEfaRnrRetry == FI_OPT_EFA_RNR_RETRY);

// The functions that libfabric exports; all others are inline functions of its headers, which call through an object.
struct Library {
  std::uint32_t api = kOldestApi;  // the version that is requested
  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_freeinfo) freeinfo = nullptr;
  decltype(&::fi_dupinfo) dupinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;
  decltype(&::fi_version) version = nullptr;
  decltype(&::fi_strerror) strerror = nullptr;
};

Status absent(const std::string& why) {
  return {StatusCode::unsupported, fmt::format("ofi: cannot use libfabric: {}; install it (Debian: libfabric1)", why)};
}

// Never unloaded: providers leave threads and handlers behind.
Result<Library> load() {
  // Without this, a child of fork() (a data loader) could take away pages that a card reads from; see README.
  static_cast<void>(::setenv("FI_EFA_FORK_SAFE", "1", 0));
  static_cast<void>(::setenv("RDMAV_FORK_SAFE", "1", 0));
  static_cast<void>(::setenv("FI_EFA_USE_HUGE_PAGE", "0", 0));
  // Without this, receivers would fetch larger messages by reads, with which ofi_rxm over tcp crashes; see survives_writes().
  static_cast<void>(::setenv("FI_OFI_RXM_EAGER_LIMIT", "16777216", 0));
  const char* const named = std::getenv("SHOAL_OFI_LIBRARY");
  const SignalsBlocked blocked;
  void* handle = ::dlopen(named == nullptr || *named == '\0' ? "libfabric.so.1" : named, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return absent(why == nullptr ? "libfabric.so.1 was not found" : why);
  }
  Library library;
  bool all = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    all &= function != nullptr;
  };
  find(library.getinfo, "fi_getinfo");
  find(library.freeinfo, "fi_freeinfo");
  find(library.dupinfo, "fi_dupinfo");
  find(library.fabric, "fi_fabric");
  find(library.version, "fi_version");
  find(library.strerror, "fi_strerror");
  if (!all) return absent("the library lacks functions that every version has");
  const std::uint32_t version = library.version();
  if (version < kOldestApi) {
    return absent(fmt::format("its version is {}.{}, at least {}.{} is required", FI_MAJOR(version), FI_MINOR(version),
                              FI_MAJOR(kOldestApi), FI_MINOR(kOldestApi)));
  }
  library.api = std::min(version, kNewestApi);
  return library;
}

const Result<Library>& library() {
  static const Result<Library> loaded = load();
  return loaded;
}

std::string error_text(int error) { return fmt::format("{} ({})", library()->strerror(error), error); }

Status failed(const std::string& what, int result) {
  return {StatusCode::system_error, fmt::format("ofi: {}: {}", what, error_text(-result))};
}

struct FreeInfo {
  void operator()(fi_info* info) const { library()->freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

struct CloseFid {
  void operator()(fid* object) const { ::fi_close(object); }
  template <typename T>
  requires(!std::is_same_v<T, fid>) void operator()(T* object) const { ::fi_close(&object->fid); }
};
template <typename T>
using Owned = std::unique_ptr<T, CloseFid>;

// All endpoints with reliable datagrams, those with one-sided writes first; null where there are none.
Info list_endpoints(const std::string& provider) {
  Info first;
  for (const std::uint64_t caps : {FI_MSG | FI_RMA, FI_MSG}) {
    const Info hints(library()->dupinfo(nullptr));
    hints->caps = caps;
    hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->tx_attr->msg_order = FI_ORDER_NONE;
    if (!provider.empty()) hints->fabric_attr->prov_name = ::strdup(provider.c_str());
    fi_info* list = nullptr;
    const SignalsBlocked blocked;  // providers start threads here
    if (library()->getinfo(library()->api, nullptr, nullptr, 0, hints.get(), &list) != 0) continue;
    if (first == nullptr) {
      first.reset(list);
    } else {
      fi_info* last = first.get();
      while (last->next != nullptr) last = last->next;
      last->next = list;
    }
  }
  return first;
}

std::string numeric_address(const fi_info& info) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (info.src_addr == nullptr) return {};
  if (info.addr_format == FI_SOCKADDR_IN && info.src_addrlen >= sizeof(sockaddr_in)) {
    ::inet_ntop(AF_INET, &static_cast<const sockaddr_in*>(info.src_addr)->sin_addr, text.data(), text.size());
  } else if (info.addr_format == FI_SOCKADDR_IN6 && info.src_addrlen >= sizeof(sockaddr_in6)) {
    ::inet_ntop(AF_INET6, &static_cast<const sockaddr_in6*>(info.src_addr)->sin6_addr, text.data(), text.size());
  }
  return text.data();
}

Candidate describe_candidate(const fi_info& info) {
  Candidate candidate;
  candidate.provider = info.fabric_attr->prov_name;
  candidate.device = info.domain_attr->name;
  candidate.address = numeric_address(info);
  candidate.writes = (info.caps & FI_RMA) != 0 && info.domain_attr->cq_data_size >= sizeof(std::uint32_t);
  candidate.hardware = info.nic != nullptr && info.nic->device_attr != nullptr;
  if (info.nic != nullptr && info.nic->link_attr != nullptr) candidate.bits_per_second = info.nic->link_attr->speed;
  // A provider whose addresses are names, and that uses no card, connects only processes of one host.
  candidate.other_hosts = candidate.hardware || info.addr_format != FI_ADDR_STR;
  candidate.loopback =
      candidate.address.starts_with("127.") || candidate.address == "::1" || candidate.address.starts_with("fe80");
  return candidate;
}

/// Provider "tcp" of libfabric 1.17 crashes the process when its peer dies or closes the endpoint while a one-sided write
/// with data, or the response to a read, arrives. The provider reports an error for the operation that last used the same
/// memory (tcpx_ep_flush_all_queues), and ofi_rxm dereferences that operation. Messages that ofi_rxm sends eagerly are not
/// affected.
bool survives_writes(std::string_view provider) { return provider != "tcp;ofi_rxm"; }

bool is_efa(const fi_info& info) { return std::string_view(info.fabric_attr->prov_name).starts_with("efa"); }

/// Provider "efa" emulates one-sided writes in software where the card has none; then two-sided messages are faster. Before
/// 1.18 the provider does not know the option, and always emulates.
bool writes_are_emulated(const fi_info& info, fid_ep* endpoint) {
  if (!is_efa(info)) return false;
  bool emulated = true;
  std::size_t size = sizeof emulated;
  const int result = ::fi_getopt(&endpoint->fid, FI_OPT_ENDPOINT, kEfaEmulatedWrite, &emulated, &size);
  return result != 0 || emulated;
}

/// Whether peers on this host may read a message in the sender's memory even after the sender has closed its endpoint, as
/// with provider "shm". Sockets, and cards that also serve peers on this host, no longer access a message after their
/// endpoint is closed.
bool local_peers_read(const fi_info& info) {
  const std::string_view name(info.fabric_attr->prov_name);
  const auto others = {"tcp", "net", "sockets", "udp", "verbs", "cxi"};
  return std::none_of(others.begin(), others.end(), [name](const char* each) { return name.starts_with(each); });
}

/// The traits, as far as they are known before the endpoint is open.
RailTraits traits_of(const fi_info& info) {
  RailTraits traits;
  traits.provider = info.fabric_attr->prov_name;
  traits.device = info.domain_attr->name;
  traits.max_message_bytes = info.ep_attr->max_msg_size;
  const bool writes = describe_candidate(info).writes && survives_writes(traits.provider);
  traits.max_write_bytes = writes ? std::min<std::size_t>(info.ep_attr->max_msg_size, std::size_t{1} << 30) : 0;
  traits.receives = info.rx_attr->size;
  traits.local_registration = (info.domain_attr->mr_mode & FI_MR_LOCAL) != 0;
  traits.writes_take_receives = (info.mode & FI_RX_CQ_DATA) != 0;
  return traits;
}

class LibfabricRail final : public Rail {
 public:
  /// `operations`: number of entries of its completion queue.
  static Result<std::unique_ptr<Rail>> open(const fi_info& chosen, const RailRequest& request, std::size_t operations) {
    const SignalsBlocked blocked;  // providers start threads here
    std::unique_ptr<LibfabricRail> rail(new LibfabricRail(chosen));
    Status status = rail->open_queues(request, operations);
    if (status.ok()) status = rail->open_endpoint();
    if (!status.ok()) return status;
    return std::unique_ptr<Rail>(std::move(rail));
  }

  [[nodiscard]] const RailTraits& traits() const noexcept override { return traits_; }

  [[nodiscard]] std::string address() const override {
    std::array<char, 256> bytes{};
    std::size_t size = bytes.size();
    if (::fi_getname(&endpoint_->fid, bytes.data(), &size) != 0) return {};
    return {bytes.data(), std::min(size, bytes.size())};
  }

  Result<std::uint64_t> add_peer(std::string_view address) override {
    const SignalsBlocked blocked;  // providers may start a thread for their first peer
    fi_addr_t peer = FI_ADDR_UNSPEC;
    // Some providers read beyond a short name, up to the size of the longest one.
    std::array<char, 256> bytes{};
    std::copy_n(address.data(), std::min(address.size(), bytes.size()), bytes.data());
    const int inserted = ::fi_av_insert(av_.get(), bytes.data(), 1, &peer, 0, nullptr);
    if (inserted != 1) return failed("fi_av_insert", inserted < 0 ? inserted : -FI_EINVAL);
    return peer;
  }

  Result<Registration> register_memory(std::span<std::byte> memory, bool for_peers) override {
    const std::uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | (for_peers ? FI_REMOTE_WRITE : 0);
    const int mode = info_->domain_attr->mr_mode;
    fid_mr* region = nullptr;
    int result = -FI_ENOKEY;
    for (int tries = 0; result == -FI_ENOKEY && tries < kKeyTries; ++tries) {
      const bool ours = (mode & FI_MR_PROV_KEY) == 0;
      const std::uint64_t key = ours ? random_key() : 0;
      if (ours && (key == 0 || keys_.contains(key))) continue;
      result = ::fi_mr_reg(domain_.get(), memory.data(), memory.size(), access, 0, key, 0, &region, nullptr);
    }
    if (result != 0)
      return failed(fmt::format("register {} bytes (is the limit of locked memory, ulimit -l, too low?)", memory.size()),
                    result);
    if ((mode & FI_MR_ENDPOINT) != 0) {
      result = ::fi_mr_bind(region, &endpoint_->fid, 0);
      if (result == 0) result = ::fi_mr_enable(region);
      if (result != 0) {
        ::fi_close(&region->fid);
        return failed("fi_mr_enable", result);
      }
    }
    Registration made{region, ::fi_mr_desc(region), ::fi_mr_key(region), 0};
    keys_.insert(made.key);
    if ((mode & FI_MR_VIRT_ADDR) != 0) made.base = reinterpret_cast<std::uintptr_t>(memory.data());
    return made;
  }

  void deregister(Registration& registration) noexcept override {
    if (registration.handle != nullptr) {
      ::fi_close(&static_cast<fid_mr*>(registration.handle)->fid);
      keys_.erase(registration.key);
    }
    registration = {};
  }

  int post_receive(Operation& operation, std::span<std::byte> memory, void* descriptor) override {
    return static_cast<int>(
        ::fi_recv(endpoint_.get(), memory.data(), memory.size(), descriptor, FI_ADDR_UNSPEC, &operation.provider));
  }

  int post_send(Operation& operation, std::uint64_t peer, std::span<const Piece> pieces) override {
    if (pieces.size() == 1) {
      return static_cast<int>(
          ::fi_send(endpoint_.get(), pieces[0].data, pieces[0].bytes, pieces[0].descriptor, peer, &operation.provider));
    }
    const std::array<iovec, 2> parts{iovec{const_cast<std::byte*>(pieces[0].data), pieces[0].bytes},
                                     iovec{const_cast<std::byte*>(pieces[1].data), pieces[1].bytes}};
    std::array<void*, 2> descriptors{pieces[0].descriptor, pieces[1].descriptor};
    return static_cast<int>(::fi_sendv(endpoint_.get(), parts.data(), descriptors.data(), 2, peer, &operation.provider));
  }

  int post_write(Operation& operation, std::uint64_t peer, const Piece& piece, std::uint64_t address, std::uint64_t key,
                 std::uint32_t data) override {
    return static_cast<int>(::fi_writedata(endpoint_.get(), piece.data, piece.bytes, piece.descriptor, data, peer, address, key,
                                           &operation.provider));
  }

  int read(std::span<Completion> completions) override {
    std::array<fi_cq_data_entry, 32> entries{};
    const auto got = ::fi_cq_read(queue_.get(), entries.data(), std::min(entries.size(), completions.size()));
    if (got == -FI_EAVAIL) return read_error(completions[0]);
    if (got == -FI_EAGAIN || got == -FI_EINTR) return 0;
    if (got < 0) return static_cast<int>(got);
    for (std::size_t i = 0; i < static_cast<std::size_t>(got); ++i)
      completions[i] = completion(entries[i].op_context, entries[i].flags, entries[i].len, entries[i].data);
    return static_cast<int>(got);
  }

  [[nodiscard]] int wait_fd() const noexcept override { return wait_fd_; }

  bool may_wait() override {
    fid* queue = &queue_->fid;
    return ::fi_trywait(fabric_.get(), &queue, 1) == 0;
  }

  void stop() noexcept override {
    // Registrations that are bound to the endpoint must be closed before it.
    if ((info_->domain_attr->mr_mode & FI_MR_ENDPOINT) == 0) endpoint_.reset();
  }

  [[nodiscard]] std::string describe(const Completion& failed) const override {
    std::string text = error_text(failed.error);
    std::array<char, 256> buffer{};
    const char* more = failed.provider_error == 0
                           ? nullptr
                           : ::fi_cq_strerror(queue_.get(), failed.provider_error, nullptr, buffer.data(), buffer.size());
    if (more != nullptr && *more != '\0') text += fmt::format(", {}", more);
    if (traits_.provider.starts_with("efa")) {
      // Error numbers of libfabric's EFA provider, and their causes in practice.
      switch (failed.provider_error) {
        case 8:
        case 13:
        case 4124:
          text += "; the peer's process has ended or its host is down";
          break;
        case 10:
          text += "; the peer posts no receives: its process hangs or is stopped";
          break;
        case 15:
        case 4113:
        case 4126:
          text += "; do the security groups allow all traffic within themselves, in both directions?";
          break;
        case 4127:
          text += "; the peer closed during a transfer";
          break;
        default:
          break;
      }
    }
    return text;
  }

 private:
  // Only the key protects this memory from writes by unauthenticated peers. So it is random, and as long as the provider
  // allows.
  [[nodiscard]] std::uint64_t random_key() const {
    std::uint64_t key = 0;
    const std::size_t bytes = info_->domain_attr->mr_key_size;
    const Nonce random = random_nonce();
    std::memcpy(&key, random.data(), sizeof key);
    return bytes == 0 || bytes >= sizeof key ? key : key & ((std::uint64_t{1} << 8 * bytes) - 1);
  }

  explicit LibfabricRail(const fi_info& chosen) : info_(library()->dupinfo(&chosen)) {}

  Status open_queues(const RailRequest& request, std::size_t operations) {
    const auto made = [](auto& owned, auto* raw) { owned.reset(raw); };
    fid_fabric* fabric = nullptr;
    if (const int result = library()->fabric(info_->fabric_attr, &fabric, nullptr); result != 0)
      return failed("fi_fabric", result);
    made(fabric_, fabric);
    fid_domain* domain = nullptr;
    if (const int result = ::fi_domain(fabric, info_.get(), &domain, nullptr); result != 0)
      return failed(fmt::format("open {} on {}", info_->fabric_attr->prov_name, info_->domain_attr->name), result);
    made(domain_, domain);
    fi_cq_attr queue_attributes{};
    queue_attributes.size = std::max(operations, kMinQueue);
    queue_attributes.format = FI_CQ_FORMAT_DATA;
    queue_attributes.wait_obj = FI_WAIT_FD;
    fid_cq* queue = nullptr;
    int result = ::fi_cq_open(domain, &queue_attributes, &queue, nullptr);
    if (result == 0 && ::fi_control(&queue->fid, FI_GETWAIT, &wait_fd_) != 0) {
      ::fi_close(&queue->fid);
      result = -FI_ENOSYS;
    }
    if (result != 0) {  // the provider has no descriptor: the caller waits by a timer
      wait_fd_ = -1;
      queue_attributes.wait_obj = FI_WAIT_NONE;
      result = ::fi_cq_open(domain, &queue_attributes, &queue, nullptr);
    }
    if (result != 0) {
      return failed(fmt::format("open a completion queue of {} entries (larger tiles need fewer: SHOAL_TILE_BYTES)",
                                queue_attributes.size),
                    result);
    }
    made(queue_, queue);
    fi_av_attr av_attributes{};
    av_attributes.type = FI_AV_TABLE;
    av_attributes.count = std::max<std::size_t>(request.peers, 1);
    fid_av* av = nullptr;
    if (result = ::fi_av_open(domain, &av_attributes, &av, nullptr); result != 0) return failed("fi_av_open", result);
    made(av_, av);
    return {};
  }

  Status open_endpoint() {
    fid_ep* endpoint = nullptr;
    int result = ::fi_endpoint(domain_.get(), info_.get(), &endpoint, nullptr);
    if (result != 0) return failed("fi_endpoint", result);
    endpoint_.reset(endpoint);
    result = ::fi_ep_bind(endpoint, &av_->fid, 0);
    if (result == 0) result = ::fi_ep_bind(endpoint, &queue_->fid, FI_TRANSMIT | FI_RECV);
    if (result != 0) return failed("fi_ep_bind", result);
    const bool no_shared_memory = set_options(endpoint, *info_);
    if (result = set_unique_name(endpoint, *info_); result != 0) return failed("fi_setname", result);
    if (result = ::fi_enable(endpoint); result != 0) return failed("fi_enable", result);
    traits_ = traits_of(*info_);
    traits_.local_peers_read = local_peers_read(*info_) && !(is_efa(*info_) && no_shared_memory);
    traits_.emulated_writes = writes_are_emulated(*info_, endpoint);
    return {};
  }

  // Provider "shm" names the shared memory of an endpoint after the process identifier. It fails to open an endpoint where a
  // killed process has left memory of that name: identifiers are reused, at the latest after a restart of the container.
  static int set_unique_name(fid_ep* endpoint, const fi_info& info) {
    if (std::string_view(info.fabric_attr->prov_name) != "shm") return 0;
    std::uint64_t number = 0;
    const Nonce random = random_nonce();
    std::memcpy(&number, random.data(), sizeof number);
    std::string name = fmt::format("fi_shm://shoal-{}-{:016x}", ::getpid(), number);
    return ::fi_setname(&endpoint->fid, name.data(), name.size() + 1);
  }

  // A library, provider or card without such an option refuses it (FI_ENOPROTOOPT, FI_ENOSYS), which is ignored here. To be
  // called before the endpoint is enabled. Returns true where the provider has agreed to use no shared memory.
  static bool set_options(fid_ep* endpoint, const fi_info& info) {
    const auto set = [&](int option, const auto& value) {
      return ::fi_setopt(&endpoint->fid, FI_OPT_ENDPOINT, option, &value, sizeof value) == 0;
    };
    set(kCudaApiPermitted, false);
    const bool promised = set(kSharedMemoryPermitted, false);
    if (is_efa(info)) set(kEfaRnrRetry, std::size_t{7});  // retries without limit: a slow receiver is no error
    return promised;
  }

  static Completion completion(void* context, std::uint64_t flags, std::size_t bytes, std::uint64_t data) {
    Completion made;
    // An Operation begins with the context's bytes.
    made.operation = static_cast<Operation*>(context);
    made.bytes = bytes;
    made.data = static_cast<std::uint32_t>(data);
    if ((flags & FI_REMOTE_WRITE) != 0 || ((flags & FI_REMOTE_CQ_DATA) != 0 && (flags & FI_RMA) != 0)) {
      made.kind = Completion::Kind::written;
    } else if ((flags & FI_RECV) != 0) {
      made.kind = Completion::Kind::received;
    }
    return made;
  }

  int read_error(Completion& into) {
    fi_cq_err_entry entry{};
    const auto got = ::fi_cq_readerr(queue_.get(), &entry, 0);
    if (got == -FI_EAGAIN) return 0;
    if (got < 0) return static_cast<int>(got);
    into = completion(entry.op_context, entry.flags, entry.len, entry.data);
    into.error = entry.err == 0 ? FI_EIO : entry.err;
    into.provider_error = entry.prov_errno;
    return 1;
  }

  Info info_;
  Owned<fid_fabric> fabric_;
  Owned<fid_domain> domain_;
  Owned<fid_cq> queue_;
  Owned<fid_av> av_;
  Owned<fid_ep> endpoint_;
  RailTraits traits_;
  int wait_fd_ = -1;
  std::set<std::uint64_t> keys_;  // of the registrations that exist
};

class Libfabric final : public Fabric {
 public:
  Result<std::vector<std::unique_ptr<Rail>>> open(const RailRequest& request) override {
    const Info list = list_endpoints(request.provider);
    std::vector<const fi_info*> infos;
    std::vector<Candidate> candidates;
    for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
      infos.push_back(info);
      candidates.push_back(describe_candidate(*info));
    }
    const auto chosen = choose(candidates, request);
    if (!chosen.ok()) return chosen.status();
    std::vector<RailTraits> traits;
    for (const std::size_t index : *chosen) traits.push_back(traits_of(*infos[index]));
    const std::size_t operations = request.operations ? request.operations(traits) : 0;
    std::vector<std::unique_ptr<Rail>> rails;
    for (const std::size_t index : *chosen) {
      auto rail = LibfabricRail::open(*infos[index], request, operations);
      if (!rail.ok()) return rail.status();
      rails.push_back(std::move(*rail));
    }
    return rails;
  }
};

}  // namespace

Result<std::shared_ptr<Fabric>> libfabric() {
  if (!library().ok()) return library().status();
  return std::shared_ptr<Fabric>(std::make_shared<Libfabric>());
}

Result<std::vector<OfiProvider>> libfabric_providers() {
  if (!library().ok()) return library().status();
  const Info list = list_endpoints({});
  std::vector<OfiProvider> providers;
  for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
    const Candidate candidate = describe_candidate(*info);
    auto found = std::find_if(providers.begin(), providers.end(), [&](const auto& p) { return p.name == candidate.provider; });
    if (found == providers.end()) {
      const std::uint32_t version = info->fabric_attr->prov_version;
      providers.push_back({candidate.provider, fmt::format("{}.{}", FI_MAJOR(version), FI_MINOR(version)), {}, false});
      found = std::prev(providers.end());
    }
    found->writes |= candidate.writes;
    if (std::find(found->devices.begin(), found->devices.end(), candidate.device) == found->devices.end())
      found->devices.push_back(candidate.device);
  }
  if (providers.empty()) return absent("no provider has reliable datagrams on this machine");
  return providers;
}

}  // namespace shoal::ofi

#endif
