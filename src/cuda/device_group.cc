// Making and unmaking a DeviceGroup.
#include "src/cuda/device_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "src/communicator/communicator_impl.h"
#include "src/cuda/device_words.h"
#include "src/settings/settings.h"
#include "src/status/quiet_thread.h"

namespace shoal::cuda {
namespace {

/// With tiles in the host's hands: enough that the wire, the copies and the folds are busy at once.
constexpr std::size_t kLookahead = 4;
constexpr std::size_t kFlagsBytes = sizeof(std::uint32_t) * kernels::kMaxPeers * kernels::kMaxFusedBlocks;
constexpr std::size_t kSlotAlignment = 256;
/// Device memory is dealt in blocks of this size: what is given to other processes has whole ones to itself.
constexpr std::size_t kBlockBytes = std::size_t{2} << 20;
constexpr std::size_t kSmallestSlot = 4096;

Executor& executor_of(Communicator& communicator) { return internal::CommunicatorImpl::of(communicator).executor(); }

/// What a rank tells the others of its device.
struct Introduction {
  MemoryHandle staging;
  std::int32_t code;  ///< of the Status of what it has done so far
};

}  // namespace

GroupState::~GroupState() {
  for (const Event event : events) static_cast<void>(api->destroy_event(event));
}

DeviceGroup::DeviceGroup(CudaApi& api, Communicator& communicator, StreamOptions options)
    : api_(api),
      communicator_(communicator),
      options_(options),
      timeout_(internal::CommunicatorImpl::of(communicator).options().timeout),
      state_(std::make_shared<GroupState>()) {
  state_->api = &api;
}

Result<std::unique_ptr<DeviceGroup>> DeviceGroup::create(CudaApi& api, Communicator& communicator, StreamOptions options) {
  std::unique_ptr<DeviceGroup> group(new DeviceGroup(api, communicator, options));
  if (Status status = group->set_up(); !status.ok()) return status;
  return group;
}

/// ok where `own` is on all ranks. Else an error of the same kind on all of them, which says which rank it is of.
Status DeviceGroup::everybody(const Status& own, Communicator& among, const char* what) {
  std::vector<std::int32_t> codes(static_cast<std::size_t>(among.size()));
  const auto code = static_cast<std::int32_t>(own.code());
  if (Status status = among.all_gather(&code, codes.data(), 1, DataType::int32); !status.ok()) return status;
  if (!own.ok()) return own;
  for (std::size_t rank = 0; rank < codes.size(); ++rank) {
    if (codes[rank] == 0) continue;
    const auto theirs = static_cast<StatusCode>(codes[rank]);
    return {theirs, fmt::format("{}: rank {} cannot ({})", what, rank, shoal::to_string(theirs))};
  }
  return {};
}

Status DeviceGroup::set_up() {
  Status own;
  if (const auto device = api_.current_device(); device.ok()) {
    device_ = *device;
  } else {
    own = device.status();
  }
  if (own.ok()) {
    auto description = api_.describe_device(device_);
    if (description.ok()) description_ = std::move(*description);
    own = description.status();
  }
  if (own.ok()) own = api_.load_kernels();
  if (options_.max_processors == 0) {
    const auto most = integer_setting("SHOAL_MAX_SMS", 1, 1024);
    if (most.ok()) options_.max_processors = static_cast<int>(*most);
    if (own.ok()) own = most.status();
  }
  if (options_.staging_bytes == 0) {
    const auto bytes = parse_bytes(setting("SHOAL_CUDA_STAGING"));
    if (bytes.ok()) options_.staging_bytes = *bytes;
    if (own.ok() && !bytes.ok()) own = Status(StatusCode::invalid_argument, "SHOAL_CUDA_STAGING=" + bytes.status().message());
  }
  if (own.ok() && options_.max_processors < 1) own = Status(StatusCode::invalid_argument, "max_processors is not positive");
  if (Status status = everybody(own, communicator_, "collectives on CUDA memory"); !status.ok()) return status;
  if (Status status = make_groups(); !status.ok()) return status;
  if (Status status = make_board_and_staging(); !status.ok()) return status;
  if (Status status = make_pinned_memory(); !status.ok()) return status;
  if (Status status = agree_on_fusing(); !status.ok()) return status;
  state_->board = board_.get();
  state_->ranks_on_board = board_ != nullptr ? node_size_ : 0;
  thread_ = quiet_thread([this] { watch(); });
  executor_of(*all_).on_close([this](const Status& cause) { note_failure(cause); });
  return {};
}

/// Groups of this one's own, so that its calls mix with no others. Nobody waits for anybody.
Status DeviceGroup::make_groups() {
  const Topology& topology = executor_of(communicator_).topology();
  const int own_node = topology.node_of_rank[static_cast<std::size_t>(communicator_.rank())];
  std::vector<std::vector<int>> nodes(static_cast<std::size_t>(communicator_.nodes()));
  std::vector<int> everyone;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    everyone.push_back(rank);
    nodes[static_cast<std::size_t>(topology.node_of_rank[static_cast<std::size_t>(rank)])].push_back(rank);
  }
  const auto make = [&](const std::vector<int>& ranks, std::unique_ptr<Communicator>& group) {
    auto made = communicator_.group(ranks);
    if (made.ok()) group = std::move(*made);
    return made.status();
  };
  if (Status status = make(everyone, all_); !status.ok()) return status;
  const std::vector<int>& own = nodes[static_cast<std::size_t>(own_node)];
  if (Status status = make(own, node_); !status.ok()) return status;
  node_rank_ = node_->rank();
  node_size_ = node_->size();
  node_ranks_ = own;

  const auto largest = std::max_element(nodes.begin(), nodes.end(), [](auto& a, auto& b) { return a.size() < b.size(); });
  const bool alike = std::all_of(nodes.begin(), nodes.end(), [&](auto& node) { return node.size() == largest->size(); });
  if (largest->size() > kernels::kMaxPeers) {
    why_host_ = fmt::format("{} ranks on a node, {} can read each other's memory", largest->size(), kernels::kMaxPeers);
  } else if (nodes.size() == 1) {
    route_ = Route::peer;
  } else if (alike && node_size_ > 1) {
    route_ = Route::rails;
    std::vector<int> rail;
    for (const auto& node : nodes) rail.push_back(node[static_cast<std::size_t>(node_rank_)]);
    return make(rail, rail_);
  } else {
    why_host_ = node_size_ == 1 ? "one rank on each node" : "nodes with different numbers of ranks";
  }
  return {};
}

/// What cannot be had is no error: the host's memory serves all devices. But all ranks must come to the same answer.
Status DeviceGroup::make_board_and_staging() {
  Status own;
  if (route_ != Route::host) {
    auto board = Board::create(*node_);
    if (board.ok()) board_ = std::move(*board);
    own = board.status();
    if (!own.ok() && own.code() != StatusCode::unsupported && own.code() != StatusCode::system_error) return own;
  } else {
    own = {StatusCode::unsupported, why_host_};
  }
  lookahead_ = route_ == Route::peer ? 0 : kLookahead;
  slot_bytes_ = std::max(options_.staging_bytes / (2 * slot_count()) / kSlotAlignment * kSlotAlignment, kSmallestSlot);
  if (own.ok()) own = map_staging();
  Status status = everybody(own, *all_, "mapping the device memory of other ranks");
  if (status.ok()) return {};
  if (own.ok() && status.code() != StatusCode::unsupported && status.code() != StatusCode::system_error) return status;
  why_host_ = status.message();
  route_ = Route::host;
  lookahead_ = kLookahead;
  slot_bytes_ = std::max(options_.staging_bytes / (2 * slot_count()) / kSlotAlignment * kSlotAlignment, kSmallestSlot);
  close_imports();
  // Nobody maps it any more when it is freed.
  if (Status met = all_->barrier(); !met.ok()) return met;
  give_back_memory();
  return {};
}

Status DeviceGroup::map_staging() {
  Status own = api_.pin(board_->memory(), Board::bytes());
  board_pinned_ = own.ok();
  const std::size_t bytes = (kFlagsBytes + 2 * slot_count() * slot_bytes_ + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  Introduction introduction{};
  if (own.ok()) {
    auto memory = api_.allocate(bytes);
    if (memory.ok()) staging_ = static_cast<std::byte*>(*memory);
    own = memory.status();
  }
  if (own.ok()) {
    static constexpr std::array<std::byte, kFlagsBytes> kZeros{};
    own = api_.copy(staging_, kZeros.data(), kZeros.size(), nullptr);
    if (own.ok()) own = api_.synchronize(nullptr);
    if (!own.ok()) staging_ = nullptr;  // the copy may still come: the memory stays until the process ends
  }
  if (own.ok()) {
    const auto handle = api_.export_memory(staging_);
    if (handle.ok()) introduction.staging = *handle;
    own = handle.status();
  }
  introduction.code = static_cast<std::int32_t>(own.code());
  std::vector<Introduction> all(static_cast<std::size_t>(node_size_));
  if (Status status = node_->all_gather(&introduction, all.data(), sizeof introduction, DataType::uint8); !status.ok())
    return status;

  peers_.assign(static_cast<std::size_t>(node_size_), nullptr);
  for (int rank = 0; rank < node_size_ && own.ok(); ++rank) {
    const Introduction& other = all[static_cast<std::size_t>(rank)];
    if (rank == node_rank_) {
      peers_[static_cast<std::size_t>(rank)] = staging_;
      continue;
    }
    if (other.code != 0)
      return {static_cast<StatusCode>(other.code), fmt::format("rank {} of the node has no memory to map", rank)};
    auto memory = api_.import_memory(other.staging);
    if (!memory.ok())
      return {StatusCode::unsupported, fmt::format("memory of rank {} of the node: {}", rank, memory.status().message())};
    imported_.push_back(*memory);
    peers_[static_cast<std::size_t>(rank)] = static_cast<std::byte*>(*memory);
  }
  return own;
}

Status DeviceGroup::make_pinned_memory() {
  Status own;
  auto words = api_.allocate_pinned(sizeof(Words));
  if (words.ok()) words_ = new (*words) Words{};
  own = words.status();
  if (own.ok() && route_ != Route::peer) {
    auto tiles = api_.allocate_pinned(slot_count() * slot_bytes_);
    if (tiles.ok()) tiles_ = static_cast<std::byte*>(*tiles);
    own = tiles.status();
  }
  if (Status status = everybody(own, *all_, "pinned memory"); !status.ok()) return status;
  registered_ = {{0, staging_, 0}};
  buffers_of_.assign(static_cast<std::size_t>(node_size_), 1);
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) words_->bases[rank][0] = peers_[rank];
  return {};
}

/// Kernels may wait for each other where each rank has a device to itself, or where the caller says so.
Status DeviceGroup::agree_on_fusing() {
  if (route_ != Route::peer || node_size_ == 1) return {};
  struct Wish {
    std::array<std::byte, 16> uuid;
    std::int32_t asserted;
    std::int32_t processors;
    std::uint64_t staging_bytes;
  };
  const Wish own{description_.uuid, options_.kernels_run_together ? 1 : 0, options_.max_processors, options_.staging_bytes};
  std::vector<Wish> all(static_cast<std::size_t>(node_size_));
  if (Status status = node_->all_gather(&own, all.data(), sizeof own, DataType::uint8); !status.ok()) return status;
  bool distinct = true;
  bool asserted = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) distinct = distinct && all[i].uuid != all[j].uuid;
    asserted = asserted && all[i].asserted != 0;
    options_.max_processors = std::min(options_.max_processors, static_cast<int>(all[i].processors));
    if (all[i].staging_bytes != own.staging_bytes || all[i].asserted != own.asserted)
      return {StatusCode::mismatch, fmt::format("rank {} has other StreamOptions than rank {}", i, node_rank_)};
  }
  fuses_ = distinct || asserted;
  return {};
}

void DeviceGroup::close_imports() {
  for (void* memory : std::exchange(imported_, {})) static_cast<void>(api_.forget_memory(memory));
  peers_.clear();
}

void DeviceGroup::give_back_memory() {
  if (staging_ != nullptr) static_cast<void>(api_.release(std::exchange(staging_, nullptr)));
  if (std::exchange(board_pinned_, false)) static_cast<void>(api_.unpin(board_->memory()));
  if (words_ != nullptr) static_cast<void>(api_.release_pinned(std::exchange(words_, nullptr)));
  if (tiles_ != nullptr) static_cast<void>(api_.release_pinned(std::exchange(tiles_, nullptr)));
  board_.reset();
}

DeviceGroup::~DeviceGroup() {
  static_cast<void>(api_.use_device(device_));
  if (!thread_.joinable()) {  // set_up() has failed: nothing was ever enqueued
    close_imports();
    give_back_memory();
    return;
  }
  std::deque<std::shared_ptr<StreamCall>> open;
  {
    const std::scoped_lock lock(state_->mutex);
    open = state_->in_flight;
  }
  for (const auto& call : open) static_cast<void>(wait_for(*call));  // each ends by its deadline, the group's thread sees to it
  const bool drained = wait_until_drained();
  {
    const std::scoped_lock lock(state_->mutex);
    stopping_ = true;
    state_->board = nullptr;
  }
  executor_of(*all_).on_close({});
  news_.notify_all();
  thread_.join();
  if (looking_out_) stop_looking_out();
  // Nobody reads here any more when all have come to the first barrier, nobody maps it after the second.
  bool orderly = drained && status().ok() && all_->barrier(farewell_).ok();
  if (drained) close_imports();
  orderly = orderly && all_->barrier(farewell_).ok();
  // After a failure, kernels of other ranks may be reading here still, and where a stream is stuck so may be this rank's own:
  // what they use then stays until the process ends.
  if (!orderly) staging_ = nullptr;
  if (drained) {
    give_back_memory();
  } else {
    static_cast<void>(board_.release());
    static_cast<void>(new std::shared_ptr<GroupState>(state_));
  }
  // Before the rest: their callbacks come here, and none runs any more when they are gone.
  rail_.reset();
  node_.reset();
  all_.reset();
}

/// Whether the streams are through with everything, and the engine with all tiles. Waits for a while, while the thread lets
/// them go on.
bool DeviceGroup::wait_until_drained() {
  constexpr std::chrono::seconds kLongest{5};
  std::unique_lock lock(state_->mutex);
  const auto end = Clock::now() + kLongest;
  for (;;) {
    state_->prune();
    if (state_->in_flight.empty() && broken_.empty()) return true;
    if (Clock::now() >= end) return false;
    news_.notify_one();
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // after a failure only
    lock.lock();
  }
}

}  // namespace shoal::cuda
