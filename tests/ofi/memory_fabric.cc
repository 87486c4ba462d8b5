#include "tests/ofi/memory_fabric.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace shoal::rails::testing {

/// One end of a rail.
class MemoryRail final : public Rail {
 public:
  MemoryRail(std::shared_ptr<MemoryNetwork> network, int number) : network_(std::move(network)) {
    const std::lock_guard lock(network_->mutex_);
    const MemoryRailOptions& options = network_->options();
    traits_.provider = "memory";
    traits_.device = "memory" + std::to_string(number);
    traits_.max_message_bytes = std::size_t{1} << 30;
    traits_.max_write_bytes = options.writes ? std::size_t{1} << 30 : 0;
    traits_.receives = options.receives;
    traits_.local_registration = options.local_registration;
    traits_.writes_take_receives = options.writes_take_receives;
    address_ = network_->rails_.size();
    network_->rails_.push_back(this);
  }
  ~MemoryRail() override { stop(); }

  [[nodiscard]] const RailTraits& traits() const noexcept override { return traits_; }
  [[nodiscard]] std::string address() const override { return std::to_string(address_); }
  Result<std::uint64_t> add_peer(std::string_view address) override {
    std::uint64_t peer = 0;
    std::from_chars(address.data(), address.data() + address.size(), peer);
    return peer;
  }
  Result<Registration> register_memory(std::span<std::byte> memory, bool for_peers) override {
    const std::lock_guard lock(network_->mutex_);
    const std::uint64_t key = ++last_key_;
    regions_[key] = {memory, for_peers};
    // Descriptors are keys, and peers address the first byte by an arbitrary number.
    return Registration{reinterpret_cast<void*>(key), reinterpret_cast<void*>(key), key, key << 40};
  }
  void deregister(Registration& registration) noexcept override {
    const std::lock_guard lock(network_->mutex_);
    regions_.erase(registration.key);
    registration = {};
  }

  int post_receive(Operation& operation, std::span<std::byte> memory, void* descriptor) override {
    const std::lock_guard lock(network_->mutex_);
    if (posted_.size() >= traits_.receives) return kAgain;
    check(memory.data(), memory.size(), descriptor, "receive");
    posted_.push_back({&operation, memory});
    return 0;
  }
  int post_send(Operation& operation, std::uint64_t peer, std::span<const Piece> pieces) override {
    const std::lock_guard lock(network_->mutex_);
    MemoryRail* const target = find(peer);
    if (target == nullptr) return fail(operation);
    Event event;
    for (const Piece& piece : pieces) {
      check(piece.data, piece.bytes, piece.descriptor, "send");
      event.bytes.insert(event.bytes.end(), piece.data, piece.data + piece.bytes);
    }
    target->inbox_.push_back(std::move(event));
    over_.push_back({Completion::Kind::sent, &operation, 0, 0, 0, 0});
    return 0;
  }
  int post_write(Operation& operation, std::uint64_t peer, const Piece& piece, std::uint64_t address, std::uint64_t key,
                 std::uint32_t data) override {
    const std::lock_guard lock(network_->mutex_);
    MemoryRail* const target = find(peer);
    if (target == nullptr) return fail(operation);
    check(piece.data, piece.bytes, piece.descriptor, "write");
    Event event;
    event.bytes.assign(piece.data, piece.data + piece.bytes);
    event.is_write = true;
    event.key = key;
    event.offset = address - (key << 40);
    event.data = data;
    event.writer = address_;
    event.operation = &operation;
    target->inbox_.push_back(std::move(event));
    return 0;
  }

  int read(std::span<Completion> completions) override {
    const std::lock_guard lock(network_->mutex_);
    std::size_t count = 0;
    while (count < completions.size() && !over_.empty()) {
      completions[count++] = over_.front();
      over_.pop_front();
    }
    while (count < completions.size() && !inbox_.empty()) {
      const Event& event = inbox_.front();
      const bool takes = !event.is_write || traits_.writes_take_receives;
      if (takes && posted_.empty()) break;
      completions[count++] = event.is_write ? place(event) : deliver(event);
      inbox_.pop_front();
    }
    return static_cast<int>(count);
  }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  bool may_wait() override { return true; }
  void stop() noexcept override {
    const std::lock_guard lock(network_->mutex_);
    network_->rails_[address_] = nullptr;
    for (const Event& event : inbox_) tell_writer(event, ECONNRESET);
    inbox_.clear();
    posted_.clear();
    over_.clear();
  }
  [[nodiscard]] std::string describe(const Completion& failed) const override { return std::strerror(failed.error); }

 private:
  struct Event {
    std::vector<std::byte> bytes;
    bool is_write = false;
    std::uint64_t key = 0;
    std::uint64_t offset = 0;
    std::uint32_t data = 0;
    std::size_t writer = 0;  // number of the rail whose write completes when the bytes are placed
    Operation* operation = nullptr;
  };
  struct PostedReceive {
    Operation* operation;
    std::span<std::byte> memory;
  };
  struct Region {
    std::span<std::byte> memory;
    bool for_peers = false;
  };

  MemoryRail* find(std::uint64_t peer) const { return peer < network_->rails_.size() ? network_->rails_[peer] : nullptr; }
  int fail(Operation& operation) {
    over_.push_back({Completion::Kind::sent, &operation, 0, 0, ECONNREFUSED, 0});
    return 0;
  }
  void tell_writer(const Event& event, int error) {
    MemoryRail* const writer = event.is_write ? find(event.writer) : nullptr;
    if (writer != nullptr) writer->over_.push_back({Completion::Kind::sent, event.operation, 0, 0, error, 0});
  }
  void complain(const std::string& text) {
    if (network_->complaint_.empty()) network_->complaint_ = text;
  }
  void check(const std::byte* data, std::size_t bytes, void* descriptor, const char* what) {
    if (!traits_.local_registration) return;
    const auto found = regions_.find(reinterpret_cast<std::uint64_t>(descriptor));
    const bool inside = found != regions_.end() && data >= found->second.memory.data() &&
                        data + bytes <= found->second.memory.data() + found->second.memory.size();
    if (!inside) complain(std::string("a ") + what + " of memory that is not registered");
  }
  Completion deliver(const Event& event) {
    const PostedReceive receive = posted_.front();
    posted_.pop_front();
    const bool fits = event.bytes.size() <= receive.memory.size();
    if (!fits) complain("a message is longer than the posted receive");
    if (fits) std::copy(event.bytes.begin(), event.bytes.end(), receive.memory.begin());
    return {Completion::Kind::received, receive.operation, event.bytes.size(), 0, fits ? 0 : EMSGSIZE, 0};
  }
  Completion place(const Event& event) {
    Completion completion{Completion::Kind::written, nullptr, event.bytes.size(), event.data, 0, 0};
    const auto found = regions_.find(event.key);
    if (found == regions_.end() || !found->second.for_peers || event.offset > found->second.memory.size() ||
        event.bytes.size() > found->second.memory.size() - event.offset) {
      // A write to memory that was deregistered meanwhile is no mistake of the writer: the write was in flight.
      if (event.key == 0 || event.key > last_key_ || found != regions_.end())
        complain("a write outside the memory that is for peers");
      completion.error = EFAULT;
    } else {
      std::copy(event.bytes.begin(), event.bytes.end(), found->second.memory.data() + event.offset);
    }
    tell_writer(event, completion.error);
    if (traits_.writes_take_receives) {
      completion.operation = posted_.front().operation;
      posted_.pop_front();
    }
    return completion;
  }

  const std::shared_ptr<MemoryNetwork> network_;
  RailTraits traits_;
  std::size_t address_ = 0;
  std::uint64_t last_key_ = 0;
  std::map<std::uint64_t, Region> regions_;
  std::deque<PostedReceive> posted_;
  std::deque<Event> inbox_;
  std::deque<Completion> over_;
};

std::string MemoryNetwork::complaint() {
  const std::lock_guard lock(mutex_);
  return complaint_;
}

Result<std::vector<std::unique_ptr<Rail>>> MemoryFabric::open(const RailRequest&) {
  std::vector<std::unique_ptr<Rail>> rails;
  for (int i = 0; i < network_->options().rails; ++i) rails.push_back(std::make_unique<MemoryRail>(network_, i));
  return rails;
}

}  // namespace shoal::rails::testing
