// Making and unmaking a DeviceGroup.
#include "src/cuda/device_group.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "kernels/partition.h"
#include "src/base/quiet_thread.h"
#include "src/communicator/communicator_impl.h"
#include "src/cuda/device_words.h"
#include "src/settings/settings.h"

namespace shoal::cuda {
namespace {

/// Where tiles go through the host: enough that the wire, the copies and the folds are busy at once.
constexpr std::size_t kLookahead = 4;
constexpr std::size_t kFlagsBytes = sizeof(std::uint32_t) * kernels::kMaxPeers * kernels::kMaxFusedBlocks;
constexpr std::size_t kSlotAlignment = 256;
/// Device memory is allocated in blocks of this size: memory that is given to other processes has whole blocks to itself.
constexpr std::size_t kBlockBytes = std::size_t{2} << 20;
constexpr std::size_t kSmallestSlot = 4096;
constexpr std::size_t kSmallestChunk = 4096;
/// Pinned memory of all lanes: the staging memory's size divided by this.
constexpr std::size_t kLanesShare = 4;

Executor& executor_of(Communicator& communicator) { return internal::CommunicatorImpl::of(communicator).executor(); }

/// What a rank sends its peers about its staging memory.
struct Introduction {
  MemoryHandle staging;
  std::int32_t code;  ///< of this rank's Status so far
};

/// The MPS server that this process would use, by the folder of its pipes: a number that is the same for all processes that
/// use that server, whatever their namespaces; 0 where there is none.
std::uint64_t mps_server() {
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  struct stat status {};
  const std::string pipe = std::string(folder == nullptr || *folder == '\0' ? "/tmp/nvidia-mps" : folder) + "/control";
  if (::stat(pipe.c_str(), &status) != 0) return 0;
  return (static_cast<std::uint64_t>(status.st_dev) << 40 ^ static_cast<std::uint64_t>(status.st_ino)) | 1;
}

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

/// ok where `own` is ok on all ranks. Else an error on all of them, of the same kind, which names the rank.
Status DeviceGroup::everybody(const Status& own, Communicator& among, const char* what) {
  std::vector<std::int32_t> codes(static_cast<std::size_t>(among.size()));
  const auto code = static_cast<std::int32_t>(own.code());
  if (Status status = among.all_gather(&code, codes.data(), 1, DataType::int32); !status.ok()) return status;
  if (!own.ok()) return own;
  for (std::size_t rank = 0; rank < codes.size(); ++rank) {
    if (codes[rank] == 0) continue;
    const auto theirs = static_cast<StatusCode>(codes[rank]);
    return {theirs, fmt::format("{}: failed on rank {} ({})", what, rank, shoal::to_string(theirs))};
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
  const std::string together = setting("SHOAL_CUDA_TOGETHER");
  const int asserted = options_.kernels_run_together || together == "1" ? 1 : together == "0" ? 0 : -1;
  if (own.ok() && together != "0" && together != "1" && together != "auto")
    own = Status(StatusCode::invalid_argument, fmt::format("SHOAL_CUDA_TOGETHER='{}' is not auto, 0 or 1", together));
  if (own.ok() && options_.max_processors < 1) own = Status(StatusCode::invalid_argument, "max_processors is not positive");
  if (Status status = everybody(own, communicator_, "collectives on CUDA memory"); !status.ok()) return status;
  if (Status status = make_groups(); !status.ok()) return status;
  if (Status status = agree_on_options(asserted); !status.ok()) return status;
  if (Status status = make_board_and_staging(); !status.ok()) return status;
  if (Status status = make_pinned_memory(); !status.ok()) return status;
  fuses_ = run_together_ && route_ == Route::peer && node_size_ > 1;
  state_->board = board_.get();
  state_->ranks_on_board = board_ != nullptr ? node_size_ : 0;
  thread_ = quiet_thread([this] { watch(); });
  // The group's own communicator, and the one that it was made from: when that one aborts, these calls must not continue.
  for (Communicator* each : {all_.get(), &communicator_})
    executor_of(*each).on_close(this, [this](const Status& cause) { note_failure(cause); });
  return {};
}

/// Makes groups of its own, so that its calls mix with no others. No rank waits for another.
Status DeviceGroup::make_groups() {
  const Topology& topology = executor_of(communicator_).topology();
  const int own_node = topology.node_of_rank[static_cast<std::size_t>(communicator_.rank())];
  nodes_.resize(static_cast<std::size_t>(communicator_.nodes()));
  std::vector<int> everyone;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    everyone.push_back(rank);
    nodes_[static_cast<std::size_t>(topology.node_of_rank[static_cast<std::size_t>(rank)])].push_back(rank);
  }
  const auto make = [&](const std::vector<int>& ranks, std::unique_ptr<Communicator>& group) {
    auto made = communicator_.group(ranks);
    if (made.ok()) group = std::move(*made);
    return made.status();
  };
  if (Status status = make(everyone, all_); !status.ok()) return status;
  if (Status status = make(everyone, mail_); !status.ok()) return status;
  const std::vector<int>& own = nodes_[static_cast<std::size_t>(own_node)];
  if (Status status = make(own, node_); !status.ok()) return status;
  node_rank_ = node_->rank();
  node_size_ = node_->size();
  node_ranks_ = own;

  const auto largest = std::max_element(nodes_.begin(), nodes_.end(), [](auto& a, auto& b) { return a.size() < b.size(); });
  const bool alike = std::all_of(nodes_.begin(), nodes_.end(), [&](auto& node) { return node.size() == largest->size(); });
  if (largest->size() > kernels::kMaxPeers) {
    why_host_ = fmt::format("{} ranks on a node; at most {} can read each other's memory", largest->size(), kernels::kMaxPeers);
  } else if (nodes_.size() == 1) {
    route_ = Route::peer;
  } else if (alike && node_size_ > 1) {
    route_ = Route::rails;
    std::vector<int> rail;
    for (const auto& node : nodes_) rail.push_back(node[static_cast<std::size_t>(node_rank_)]);
    return make(rail, rail_);
  } else {
    why_host_ = node_size_ == 1 ? "one rank on each node" : "nodes with different numbers of ranks";
  }
  return {};
}

/// Bytes of each input slot and result slot: room for a vector of every share, and one more, even where a slot has two halves.
std::size_t DeviceGroup::bytes_of_slot() const {
  const std::size_t needed = 4 * kernels::kVectorBytes * static_cast<std::size_t>(communicator_.size());
  const std::size_t wanted = std::max({options_.staging_bytes / (2 * slot_count()), needed, kSmallestSlot});
  return (wanted + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

/// A missing ability is no error: the host's memory serves all devices. But all ranks must come to the same answer.
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
  slot_bytes_ = bytes_of_slot();
  if (own.ok()) own = map_staging();
  Status status = everybody(own, *all_, "mapping the device memory of other ranks");
  if (status.ok()) return {};
  if (own.ok() && status.code() != StatusCode::unsupported && status.code() != StatusCode::system_error) return status;
  why_host_ = status.message();
  route_ = Route::host;
  lookahead_ = kLookahead;
  slot_bytes_ = bytes_of_slot();
  close_imports();
  // No rank may map it any more when it is freed.
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
    if (!own.ok()) staging_ = nullptr;  // the copy may still run: the memory stays until the process ends
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

  std::vector<MemoryHandle> handles;
  std::vector<bool> has_memory;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    handles.push_back(all[rank].staging);
    has_memory.push_back(all[rank].code == 0);
    if (all[rank].code != 0 && own.ok())
      own = Status(static_cast<StatusCode>(all[rank].code), fmt::format("rank {} of the node has no staging memory", rank));
  }
  std::vector<void*> mapped(all.size());
  const Status imported = map_offers(handles, has_memory, mapped);
  if (own.ok() && !imported.ok()) own = Status(StatusCode::unsupported, imported.message());
  mapped_.resize(all.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    mapped_[rank][0] = mapped[rank];
    const bool is_own = static_cast<int>(rank) == node_rank_;
    peers_.push_back(is_own ? staging_ : static_cast<std::byte*>(mapped[rank]));
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
  if (own.ok()) {
    chunk_bytes_ = options_.staging_bytes / kLanesShare / kLanes / kLaneChunks / kSlotAlignment * kSlotAlignment;
    chunk_bytes_ = std::max(chunk_bytes_, kSmallestChunk);
    auto lanes = api_.allocate_pinned(kLanes * kLaneChunks * chunk_bytes_);
    if (lanes.ok()) lane_memory_ = static_cast<std::byte*>(*lanes);
    own = lanes.status();
    for (std::size_t lane = 0; lane < kLanes && own.ok(); ++lane)
      lanes_[lane].chunks = lane_memory_ + lane * kLaneChunks * chunk_bytes_;
  }
  if (Status status = everybody(own, *all_, "pinned memory"); !status.ok()) return status;
  registered_[0] = {0, staging_, 0, 1};
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) words_->bases[rank][0] = peers_[rank];
  return {};
}

/// Options must be the same on all ranks. Kernels may wait for each other where each rank has a device to itself, where the
/// caller asserts it, and where one MPS server runs the kernels of all ranks of a device with processors for all of them.
Status DeviceGroup::agree_on_options(int asserted) {
  struct Wish {
    std::array<std::byte, 16> uuid;
    std::uint64_t staging_bytes;
    std::uint64_t server;  ///< MPS; 0: none
    std::int32_t asserted;
    std::int32_t processors;  ///< that kernels of this rank take
    std::int32_t of_device;
  };
  const std::uint64_t server = description_.mps ? mps_server() : 0;
  const Wish own{description_.uuid, options_.staging_bytes, server, asserted, options_.max_processors, description_.processors};
  std::vector<Wish> all(static_cast<std::size_t>(communicator_.size()));
  if (Status status = all_->all_gather(&own, all.data(), sizeof own, DataType::uint8); !status.ok()) return status;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].staging_bytes != own.staging_bytes || all[rank].asserted != own.asserted) {
      return {StatusCode::mismatch,
              fmt::format("rank {} has other options than rank {}: staging_bytes (SHOAL_CUDA_STAGING) {} and {}, "
                          "kernels_run_together (SHOAL_CUDA_TOGETHER) {} and {}",
                          rank, communicator_.rank(), all[rank].staging_bytes, own.staging_bytes, all[rank].asserted,
                          own.asserted)};
    }
  }
  run_together_ = true;
  for (const int rank : node_ranks_) {
    const Wish& one = all[static_cast<std::size_t>(rank)];
    options_.max_processors = std::min(options_.max_processors, static_cast<int>(one.processors));
    bool one_server = one.server != 0;
    int sharing = 0;
    int wanted = 0;
    for (const int other : node_ranks_) {
      const Wish& two = all[static_cast<std::size_t>(other)];
      if (one.uuid != two.uuid) continue;
      ++sharing;
      wanted += two.processors;
      one_server = one_server && two.server == one.server;
    }
    const bool detected = asserted < 0 && one_server && wanted <= one.of_device;
    run_together_ = run_together_ && (sharing == 1 || asserted == 1 || detected);
  }
  return {};
}

void DeviceGroup::close_imports() {
  for (const auto& of_rank : std::exchange(mapped_, {})) {
    for (void* memory : of_rank) {
      if (memory != nullptr) static_cast<void>(api_.forget_memory(memory));
    }
  }
  peers_.clear();
}

void DeviceGroup::give_back_memory() {
  if (staging_ != nullptr) static_cast<void>(api_.release(std::exchange(staging_, nullptr)));
  if (std::exchange(board_pinned_, false)) static_cast<void>(api_.unpin(board_->memory()));
  if (words_ != nullptr) static_cast<void>(api_.release_pinned(std::exchange(words_, nullptr)));
  if (tiles_ != nullptr) static_cast<void>(api_.release_pinned(std::exchange(tiles_, nullptr)));
  if (lane_memory_ != nullptr) static_cast<void>(api_.release_pinned(std::exchange(lane_memory_, nullptr)));
  board_.reset();
}

DeviceGroup::~DeviceGroup() {
  static_cast<void>(api_.use_device(device_));
  if (!thread_.joinable()) {  // set_up() has failed: nothing was ever enqueued
    close_imports();
    give_back_memory();
    return;
  }
  const bool drained = wait_until_drained();
  {
    const std::scoped_lock lock(state_->mutex);
    stopping_ = true;
    state_->board = nullptr;
  }
  for (Communicator* each : {all_.get(), &communicator_}) executor_of(*each).on_close(this, {});
  state_->news.notify_all();
  thread_.join();
  if (looking_out_) stop_looking_out();
  // After the first barrier no rank reads here any more; after the second no rank maps it.
  bool orderly = drained && status().ok() && all_->barrier(farewell_).ok();
  if (drained) close_imports();
  orderly = orderly && all_->barrier(farewell_).ok();
  // After a failure, kernels of other ranks may still read here, and where a stream is stuck, so may this rank's own kernels.
  // The memory that they use then stays until the process ends.
  if (!orderly) staging_ = nullptr;
  if (drained) {
    give_back_memory();
  } else {
    static_cast<void>(board_.release());
    static_cast<void>(new std::shared_ptr<GroupState>(state_));
  }
  // Before the other members: callbacks of these communicators use the group, and none runs any more when they are destroyed.
  rail_.reset();
  mail_.reset();
  node_.reset();
  all_.reset();
}

/// Whether the streams have completed all calls, and the engine all tiles. Waits until the last deadline, at which the group's
/// thread releases the streams, and kLongest more. Never waits for an event, which may be behind other work that is stuck.
bool DeviceGroup::wait_until_drained() {
  constexpr std::chrono::seconds kLongest{5};
  std::unique_lock lock(state_->mutex);
  auto end = Clock::now();
  for (const auto& call : state_->in_flight) end = std::max(end, call->deadline);
  for (end += kLongest;;) {
    state_->prune();
    if (state_->in_flight.empty() && state_->broken.empty()) return true;
    if (!state_->failure.ok()) end = std::min(end, Clock::now() + kLongest);
    if (Clock::now() >= end) return false;
    state_->news.notify_one();
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    lock.lock();
  }
}

}  // namespace shoal::cuda
