#include "transports/ucx/ucx.h"

#include <utility>

#include <fmt/format.h>

#ifndef SHOAL_HAS_UCX

namespace shoal {
namespace {
Status no_ucx() {
  return {StatusCode::unsupported, "ucx: this build is without UCX; build again where libucx-dev is installed"};
}
}  // namespace

Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions&) { return no_ucx(); }
Result<std::string> ucx_version() { return no_ucx(); }

}  // namespace shoal

#else

#include <dlfcn.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <type_traits>

#include "src/base/quiet_thread.h"
#include "transports/ucx/devices.h"

namespace shoal {
namespace ucx {
namespace {

using rails::Completion;
using rails::Operation;
using rails::Piece;
using rails::Rail;
using rails::RailTraits;
using rails::Registration;

constexpr std::size_t kReceives = 1 << 16;
constexpr std::size_t kMaxAddress = 1000;  // a transport's address has 1 KiB
constexpr std::chrono::milliseconds kFlushTime{300};

// The functions of UCX, found when it is loaded.
// clang-format off
#define SHOAL_UCX_FUNCTIONS(X) \
  X(ucp_get_version) X(ucp_init_version) X(ucp_config_read) X(ucp_config_modify) \
  X(ucp_config_release) X(ucp_cleanup) X(ucp_worker_create) X(ucp_worker_destroy) \
  X(ucp_worker_get_address) X(ucp_worker_release_address) X(ucp_worker_get_efd) X(ucp_worker_arm) \
  X(ucp_worker_progress) X(ucp_worker_flush_nbx) X(ucp_ep_create) X(ucp_ep_close_nbx) \
  X(ucp_dt_create_generic) X(ucp_dt_destroy) X(ucp_tag_send_nbx) X(ucp_tag_recv_nbx) X(ucp_request_free) X(ucp_request_cancel) \
  X(ucp_request_check_status)
// clang-format on

struct Library {
#define SHOAL_DECLARE(name) decltype(&::name) name = nullptr;
  SHOAL_UCX_FUNCTIONS(SHOAL_DECLARE)
#undef SHOAL_DECLARE
  decltype(&::ucs_status_string) status_string = nullptr;
};

Result<Library> load() {
  const auto absent = [](const char* why) {
    return Status(StatusCode::unsupported,
                  fmt::format("ucx: cannot use UCX: {}; install it (Debian: libucx0)", why == nullptr ? "unknown" : why));
  };
  // Never unloaded: it leaves handlers behind.
  const char* const named = std::getenv("SHOAL_UCX_LIBRARY");
  const SignalsBlocked blocked;
  void* const handle = ::dlopen(named == nullptr || *named == '\0' ? "libucp.so.0" : named, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absent(::dlerror());
  Library library;
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (function == nullptr) missing = name;
  };
#define SHOAL_FIND(name) find(library.name, #name);
  SHOAL_UCX_FUNCTIONS(SHOAL_FIND)
#undef SHOAL_FIND
  find(library.status_string, "ucs_status_string");
  if (missing != nullptr) return absent(fmt::format("the library lacks {} (version 1.13 has it)", missing).c_str());
  return library;
}

const Result<Library>& library() {
  static const Result<Library> loaded = load();
  return loaded;
}

Status failed(const char* what, ucs_status_t status) {
  return {StatusCode::system_error, fmt::format("ucx: {}: {}", what, library()->status_string(status))};
}

/// Two pieces that UCX reads through these functions when it has room for them, so that their address may change until then.
/// Stored in words 4 to 7 of an operation.
struct Parts {
  struct Part {
    const std::byte* data;
    std::size_t bytes;
  };
  std::array<Part, 2> parts;

  static Parts& of(Operation& operation) noexcept { return *reinterpret_cast<Parts*>(&operation.provider[4]); }
  static void* start(void*, const void* operation, std::size_t) noexcept {
    return &of(*static_cast<Operation*>(const_cast<void*>(operation)));
  }
  static std::size_t size(void* state) noexcept {
    const auto& [first, second] = static_cast<Parts*>(state)->parts;
    return first.bytes + second.bytes;
  }
  static std::size_t pack(void* state, std::size_t offset, void* target, std::size_t room) noexcept {
    auto* const out = static_cast<std::byte*>(target);
    std::size_t done = 0;
    for (const Part& part : static_cast<Parts*>(state)->parts) {
      const std::size_t skipped = std::min(offset, part.bytes);
      const std::size_t count = std::min(part.bytes - skipped, room - done);
      if (count > 0) std::memcpy(out + done, part.data + skipped, count);
      offset -= skipped;
      done += count;
    }
    return done;
  }
  static void finish(void*) noexcept {}
  // Never called: this data type is only sent.
  static void* no_receive(void*, void*, std::size_t) noexcept { return nullptr; }
  static ucs_status_t no_unpack(void*, std::size_t, const void*, std::size_t) noexcept { return UCS_ERR_UNSUPPORTED; }
};
static_assert(sizeof(Parts) <= 4 * sizeof(void*));

/// A rail on one UCX worker: UCX shares the load among network devices itself. The state of a posted operation is in the
/// words that an Operation has for its provider.
class UcxRail final : public Rail {
 public:
  /// `devices`: UCX's names of the devices that it may use; empty: UCX chooses.
  static Result<std::unique_ptr<Rail>> open(const std::string& devices) {
    const SignalsBlocked blocked;  // UCX starts a thread for its workers
    std::unique_ptr<UcxRail> rail(new UcxRail());
    if (Status status = rail->start(devices); !status.ok()) return status;
    return std::unique_ptr<Rail>(std::move(rail));
  }
  ~UcxRail() override {
    stop();
    if (worker_ != nullptr) library()->ucp_worker_destroy(worker_);
    if (parts_type_ != 0) library()->ucp_dt_destroy(parts_type_);
    if (context_ != nullptr) library()->ucp_cleanup(context_);
  }

  [[nodiscard]] const RailTraits& traits() const noexcept override { return traits_; }
  [[nodiscard]] std::string address() const override { return address_; }

  Result<std::uint64_t> add_peer(std::string_view address) override {
    ucp_ep_params_t parameters{};
    parameters.field_mask =
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
    parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    // Operations in flight complete with the error, and later sends return it.
    parameters.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    const SignalsBlocked blocked;  // some UCX transports start theirs with the first peer
    ucp_ep_h endpoint = nullptr;
    ucs_status_t status = library()->ucp_ep_create(worker_, &parameters, &endpoint);
    if (status == UCS_ERR_UNREACHABLE || status == UCS_ERR_UNSUPPORTED) {
      // A UCX transport that does not detect the end of a peer. The Hub watches the peer's process, and control connections
      // report its end.
      parameters.err_mode = UCP_ERR_HANDLING_MODE_NONE;
      status = library()->ucp_ep_create(worker_, &parameters, &endpoint);
    }
    if (status != UCS_OK) return failed("ucp_ep_create", status);
    endpoints_.push_back(endpoint);
    over_memory_.push_back(parameters.err_mode == UCP_ERR_HANDLING_MODE_NONE);
    return endpoints_.size() - 1;
  }

  Result<Registration> register_memory(std::span<std::byte>, bool) override {
    return Registration{};
  }  // UCX registers by itself
  void deregister(Registration&) noexcept override {}

  int post_receive(Operation& operation, std::span<std::byte> memory, void*) override {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    parameters.cb.recv = on_received;
    parameters.user_data = &operation;
    link(operation);
    const ucs_status_ptr_t request = library()->ucp_tag_recv_nbx(worker_, memory.data(), memory.size(), 0, 0, &parameters);
    if (UCS_PTR_IS_ERR(request)) {
      unlink(operation);
      return to_errno(UCS_PTR_STATUS(request));
    }
    if (is_linked(operation)) operation.provider[1] = request;
    return 0;
  }

  int post_send(Operation& operation, std::uint64_t peer, std::span<const Piece> pieces) override {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    parameters.cb.send = on_sent;
    parameters.user_data = &operation;
    operation.provider[0] = this;
    const void* data = pieces[0].data;
    std::size_t count = pieces[0].bytes;
    if (pieces.size() > 1 && pieces[1].may_redirect) {
      for (std::size_t i = 0; i < 2; ++i) Parts::of(operation).parts[i] = {pieces[i].data, pieces[i].bytes};
      parameters.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
      parameters.datatype = parts_type_;
      data = &operation;
      count = 1;
    } else if (pieces.size() > 1) {
      // Kept in the operation until it has completed.
      static_assert(2 * sizeof(ucp_dt_iov_t) <= 4 * sizeof(void*));
      auto* const parts = reinterpret_cast<ucp_dt_iov_t*>(&operation.provider[4]);
      for (std::size_t i = 0; i < 2; ++i) parts[i] = {const_cast<std::byte*>(pieces[i].data), pieces[i].bytes};
      parameters.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
      parameters.datatype = UCP_DATATYPE_IOV;
      data = parts;
      count = 2;
    }
    const ucs_status_ptr_t request = library()->ucp_tag_send_nbx(endpoints_[peer], data, count, 0, &parameters);
    if (request == nullptr) {
      completions_.push_back({Completion::Kind::sent, &operation, 0, 0, 0, 0});
    } else if (UCS_PTR_IS_ERR(request)) {
      return to_errno(UCS_PTR_STATUS(request));
    }
    return 0;
  }

  // Over a network UCX may send in place, but not through functions: that takes 34 ms instead of 17 for 16 MiB over TCP. So
  // only peers over memory are redirected.
  [[nodiscard]] bool redirects(std::uint64_t peer) const noexcept override { return over_memory_[peer]; }
  void redirect(Operation& operation, const std::byte* data) noexcept override { Parts::of(operation).parts[1].data = data; }

  int post_write(Operation&, std::uint64_t, const Piece&, std::uint64_t, std::uint64_t, std::uint32_t) override {
    return -EOPNOTSUPP;  // UCX has no one-sided writes that notify their target
  }

  int read(std::span<Completion> completions) override {
    for (int i = 0; i < 16 && completions_.size() < completions.size() && library()->ucp_worker_progress(worker_) != 0; ++i) {
    }
    const std::size_t count = std::min(completions_.size(), completions.size());
    std::copy_n(completions_.begin(), count, completions.begin());
    completions_.erase(completions_.begin(), completions_.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<int>(count);
  }

  [[nodiscard]] int wait_fd() const noexcept override { return wait_fd_; }
  bool may_wait() override { return completions_.empty() && library()->ucp_worker_arm(worker_) == UCS_OK; }

  void stop() noexcept override {
    if (worker_ == nullptr || std::exchange(stopped_, true)) return;
    // Data of completed sends may still be in UCX's own memory.
    const ucp_request_param_t plain{};
    finish(library()->ucp_worker_flush_nbx(worker_, &plain));
    ucp_request_param_t force{};
    force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    force.flags = UCP_EP_CLOSE_FLAG_FORCE;
    for (ucp_ep_h endpoint : endpoints_) finish(library()->ucp_ep_close_nbx(endpoint, &force));
    endpoints_.clear();
    while (first_ != nullptr) {
      Operation* const operation = first_;
      library()->ucp_request_cancel(worker_, operation->provider[1]);
      if (first_ == operation) unlink(*operation);  // its callback was not called, and never will be
    }
    completions_.clear();
  }

  [[nodiscard]] std::string describe(const Completion& failed) const override {
    if (failed.provider_error != 0) return library()->status_string(static_cast<ucs_status_t>(failed.provider_error));
    return last_error_ != UCS_OK ? library()->status_string(last_error_) : "the operation failed";
  }

 private:
  UcxRail() = default;

  Status start(const std::string& devices) {
    ucp_config_t* configuration = nullptr;
    ucs_status_t status = library()->ucp_config_read(nullptr, nullptr, &configuration);
    if (status != UCS_OK) return failed("ucp_config_read (is a UCX_ variable malformed?)", status);
    // UCX's rendezvous costs each tile a round trip and, over TCP, a third of the rate of 1 Gbit/s. A receive is always
    // posted here.
    if (std::getenv("UCX_RNDV_THRESH") == nullptr)
      static_cast<void>(library()->ucp_config_modify(configuration, "RNDV_THRESH", "inf"));
    if (!devices.empty()) {
      status = library()->ucp_config_modify(configuration, "NET_DEVICES", devices.c_str());
      if (status != UCS_OK) {
        library()->ucp_config_release(configuration);
        return failed("ucp_config_modify of NET_DEVICES", status);
      }
    }
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    parameters.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    status = library()->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, configuration, &context_);
    library()->ucp_config_release(configuration);
    if (status != UCS_OK) return failed("ucp_init", status);
    constexpr ucp_generic_dt_ops_t kParts{Parts::start, Parts::no_receive, Parts::size,
                                          Parts::pack,  Parts::no_unpack,  Parts::finish};
    if (status = library()->ucp_dt_create_generic(&kParts, this, &parts_type_); status != UCS_OK)
      return failed("ucp_dt_create_generic", status);
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    if (status = library()->ucp_worker_create(context_, &worker, &worker_); status != UCS_OK)
      return failed("ucp_worker_create", status);
    if (status = library()->ucp_worker_get_efd(worker_, &wait_fd_); status != UCS_OK)
      return failed("ucp_worker_get_efd", status);
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    if (status = library()->ucp_worker_get_address(worker_, &address, &bytes); status != UCS_OK)
      return failed("ucp_worker_get_address", status);
    address_.assign(reinterpret_cast<const char*>(address), bytes);
    library()->ucp_worker_release_address(worker_, address);
    if (bytes > kMaxAddress) {
      return {StatusCode::unsupported,
              fmt::format("ucx: the address of this process has {} bytes, at most {} are possible; name fewer devices "
                          "(UCX_NET_DEVICES) or transports (UCX_TLS)",
                          bytes, kMaxAddress)};
    }
    traits_.provider = "ucx";
    traits_.device = "ucx";
    traits_.max_message_bytes = std::size_t{1} << 30;
    traits_.receives = kReceives;
    return {};
  }

  // Waits until the request has completed, at most kFlushTime: the peer may have ended.
  void finish(ucs_status_ptr_t request) noexcept {
    if (request == nullptr || UCS_PTR_IS_ERR(request)) return;
    const auto until = std::chrono::steady_clock::now() + kFlushTime;
    while (library()->ucp_request_check_status(request) == UCS_INPROGRESS && std::chrono::steady_clock::now() < until) {
      library()->ucp_worker_progress(worker_);
    }
    library()->ucp_request_free(request);
  }

  int to_errno(ucs_status_t status) noexcept {
    if (status == UCS_ERR_NO_RESOURCE) return rails::kAgain;
    last_error_ = status;
    return -EIO;
  }

  static void on_sent(void* request, ucs_status_t status, void* user) {
    auto* const operation = static_cast<Operation*>(user);
    auto* const rail = static_cast<UcxRail*>(operation->provider[0]);
    rail->completions_.push_back({Completion::Kind::sent, operation, 0, 0, status == UCS_OK ? 0 : EIO, status});
    library()->ucp_request_free(request);
  }

  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* user) {
    auto* const operation = static_cast<Operation*>(user);
    auto* const rail = static_cast<UcxRail*>(operation->provider[0]);
    rail->unlink(*operation);
    if (!rail->stopped_) {
      const std::size_t bytes = status == UCS_OK ? info->length : 0;
      rail->completions_.push_back({Completion::Kind::received, operation, bytes, 0, status == UCS_OK ? 0 : EIO, status});
    }
    library()->ucp_request_free(request);
  }

  // The posted receives, which stop() cancels: a list through words 2 and 3 of their operations.
  void link(Operation& operation) noexcept {
    operation.provider[0] = this;
    operation.provider[1] = nullptr;
    operation.provider[2] = nullptr;
    operation.provider[3] = first_;
    if (first_ != nullptr) first_->provider[2] = &operation;
    first_ = &operation;
  }
  void unlink(Operation& operation) noexcept {
    auto* const before = static_cast<Operation*>(operation.provider[2]);
    auto* const after = static_cast<Operation*>(operation.provider[3]);
    if (before != nullptr) before->provider[3] = after;
    if (after != nullptr) after->provider[2] = before;
    if (first_ == &operation) first_ = after;
    operation.provider[2] = operation.provider[3] = nullptr;
  }
  [[nodiscard]] bool is_linked(const Operation& operation) const noexcept {
    return first_ == &operation || operation.provider[2] != nullptr;
  }

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_datatype_t parts_type_ = 0;
  RailTraits traits_;
  std::string address_;
  std::vector<ucp_ep_h> endpoints_;
  std::vector<bool> over_memory_;  // whether the endpoint has no error handling (UCX over memory)
  std::deque<Completion> completions_;
  Operation* first_ = nullptr;
  ucs_status_t last_error_ = UCS_OK;
  int wait_fd_ = -1;
  bool stopped_ = false;
};

}  // namespace
}  // namespace ucx

Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& wanted) {
  UcxOptions options = wanted;
  options.transport = "ucx";
  options.write_from_bytes = 0;
  if (Status status = rails::check(options); !status.ok()) return status;
  if (!ucx::library().ok()) return ucx::library().status();
  std::string devices;
  if (!options.near.empty() && std::getenv("UCX_NET_DEVICES") == nullptr) {
    auto found = ucx::net_devices(options.near, ucx::interfaces(), "/sys");
    if (!found.ok()) return found.status();
    devices = std::move(*found);
  }
  auto rail = ucx::UcxRail::open(devices);
  if (!rail.ok()) return rail.status();
  std::vector<std::unique_ptr<rails::Rail>> rails;
  rails.push_back(std::move(*rail));
  return rails::make_transport(options, std::move(rails));
}

Result<std::string> ucx_version() {
  if (!ucx::library().ok()) return ucx::library().status();
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucx::library()->ucp_get_version(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace shoal

#endif
