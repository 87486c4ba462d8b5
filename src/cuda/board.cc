#include "src/cuda/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include <fmt/format.h>

namespace shoal::cuda {
namespace {

/// Calls of which a rank's signatures are kept. A rank that is further ahead of a peer is not compared with it.
constexpr std::size_t kSignatures = 64;

struct alignas(kernels::kFlagBytes) FlagLine {
  std::uint32_t value;
};
struct alignas(kernels::kFlagBytes) PlaceLine {
  kernels::Place place;
};
/// `call` is the sequence number plus one, or 0 while the rest is being written.
struct SignatureLine {
  std::atomic<std::uint64_t> call;
  std::atomic<std::uint64_t> count;
  std::atomic<std::uint64_t> counts;
  std::atomic<std::uint64_t> what;
};

std::uint64_t packed(const Signature& s) {
  return static_cast<std::uint64_t>(s.kind) | static_cast<std::uint64_t>(s.type) << 8 | static_cast<std::uint64_t>(s.op) << 16 |
         std::uint64_t{s.root} << 32;
}
Signature unpacked(const SignatureLine& line) {
  const std::uint64_t what = line.what.load();
  return {line.count.load(),
          line.counts.load(),
          static_cast<CollectiveKind>(what & 0xFF),
          static_cast<DataType>(what >> 8 & 0xFF),
          static_cast<ReduceOp>(what >> 16 & 0xFF),
          static_cast<std::uint32_t>(what >> 32)};
}

/// Why a rank has aborted. `code` is written last; 0: it has not.
struct Cause {
  std::atomic<std::int32_t> code;
  char text[1020];
};

/// Where a rank finds the memory of the rank that made it.
struct Address {
  std::int64_t process = 0;
  std::int64_t descriptor = -1;
  std::uint64_t secret = 0;  ///< also in the memory: another PID namespace may have a process of the same number
  std::int64_t error = 0;    ///< why there is no memory
};

}  // namespace

struct Board::Layout {
  std::uint64_t secret;
  Cause causes[kernels::kMaxPeers];
  FlagLine flags[kernels::kMaxPeers][kernels::kMaxPeers];
  PlaceLine places[kernels::kMaxPeers][kMaxSlots];
  SignatureLine signatures[kernels::kMaxPeers][kSignatures];
  std::array<std::atomic<std::uint64_t>, kernels::kMaxPeers> last_call;  ///< sequence plus one
};

std::string to_string(const Signature& s) {
  if (s.kind == CollectiveKind::barrier) return "barrier";
  std::string text = fmt::format("{}{} of ", shoal::to_string(s.kind), s.counts != 0 ? "_v" : "");
  if (s.counts == 0 || s.kind != CollectiveKind::all_to_all) text += fmt::format("{} ", s.count);
  text += shoal::to_string(s.type);
  if (reduces(s.kind)) text += fmt::format(" with {}", shoal::to_string(s.op));
  const bool to = s.kind == CollectiveKind::reduce || s.kind == CollectiveKind::gather || s.kind == CollectiveKind::send;
  if (has_root(s.kind) || s.kind == CollectiveKind::send || s.kind == CollectiveKind::receive)
    text += fmt::format(" {} rank {}", to ? "to" : "from", s.root);
  if (s.counts != 0 && s.kind != CollectiveKind::all_to_all) text += fmt::format(" in shares {:x}", s.counts & 0xFFFFFF);
  return text;
}

std::size_t Board::bytes() noexcept {
  constexpr std::size_t kPage = 4096;
  return (sizeof(Layout) + kPage - 1) / kPage * kPage;
}

Result<std::unique_ptr<Board>> Board::create(Communicator& node) {
  if (node.size() > kernels::kMaxPeers)
    return Status(StatusCode::unsupported,
                  fmt::format("{} ranks on a node; at most {} can share memory", node.size(), kernels::kMaxPeers));
  int descriptor = -1;
  void* memory = MAP_FAILED;
  Address address;
  if (node.rank() == 0) {
    descriptor = ::memfd_create("shoal-cuda-board", MFD_CLOEXEC);
    if (descriptor >= 0 && ::ftruncate(descriptor, static_cast<off_t>(bytes())) == 0)
      memory = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    address.error = memory == MAP_FAILED ? errno : 0;
    if (memory != MAP_FAILED) {
      std::random_device random;
      address = {::getpid(), descriptor, std::uint64_t{random()} << 32 | random(), 0};
      static_cast<Layout*>(memory)->secret = address.secret;
    }
  }
  Status status = node.broadcast(&address, sizeof address, DataType::uint8, 0);
  if (status.ok() && address.error == 0 && node.rank() != 0) {
    const std::string path = fmt::format("/proc/{}/fd/{}", address.process, address.descriptor);
    descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor >= 0) memory = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory != MAP_FAILED && static_cast<Layout*>(memory)->secret != address.secret) {
      ::munmap(memory, bytes());
      memory = MAP_FAILED;
    }
  }
  // All ranks must come to the same answer; and the descriptor of rank 0 stays open until all have used it.
  std::int32_t all_mapped = memory != MAP_FAILED ? 1 : 0;
  if (status.ok()) status = node.all_reduce(&all_mapped, &all_mapped, 1, DataType::int32, ReduceOp::min);
  if (descriptor >= 0) ::close(descriptor);
  if (status.ok() && all_mapped != 0) return std::unique_ptr<Board>(new Board(static_cast<Layout*>(memory)));
  if (memory != MAP_FAILED) ::munmap(memory, bytes());
  if (!status.ok()) return status;
  if (address.error != 0) return system_error("memfd_create for flags of CUDA streams", static_cast<int>(address.error));
  return Status(StatusCode::unsupported, "the ranks of this node cannot map each other's memory");
}

Board::~Board() { ::munmap(layout_, bytes()); }

std::uint32_t* Board::flag(int reader, int writer) noexcept { return &layout_->flags[reader][writer].value; }
kernels::Place* Board::place(int writer, std::size_t slot) noexcept { return &layout_->places[writer][slot].place; }

void Board::release(int reader, int ranks, std::uint32_t last) noexcept {
  constexpr std::uint32_t kFarAhead = 1U << 30;  // half of what 32 bits that wrap can tell apart
  for (int writer = 0; writer < ranks; ++writer) std::atomic_ref(*flag(reader, writer)).store(last + kFarAhead);
}

void Board::give_up(int rank, const Status& cause) noexcept {
  Cause& own = layout_->causes[rank];
  std::strncpy(own.text, cause.message().c_str(), sizeof own.text - 1);  // the page was zero
  own.code.store(static_cast<std::int32_t>(cause.code()));
}

Status Board::given_up(int ranks) const {
  for (int rank = 0; rank < ranks; ++rank) {
    const Cause& cause = layout_->causes[rank];
    if (const std::int32_t code = cause.code.load(); code != 0) return {static_cast<StatusCode>(code), cause.text};
  }
  return {};
}

std::optional<Board::Disagreement> Board::sign(int rank, int ranks, std::uint64_t sequence,
                                               const Signature& signature) noexcept {
  const std::size_t at = sequence % kSignatures;
  SignatureLine& own = layout_->signatures[rank][at];
  own.call.store(0);
  own.count.store(signature.count);
  own.counts.store(signature.counts);
  own.what.store(packed(signature));
  // Sequentially consistent, as the loads below: of two ranks that store and then look, one at least sees the other's.
  own.call.store(sequence + 1);
  layout_->last_call[static_cast<std::size_t>(rank)].store(sequence + 1);
  for (int other = 0; other < ranks; ++other) {
    const SignatureLine& line = layout_->signatures[other][at];
    if (other == rank || line.call.load() != sequence + 1) continue;
    const Signature theirs = unpacked(line);
    if (line.call.load() == sequence + 1 && !(theirs == signature)) return Disagreement{other, theirs};
  }
  return std::nullopt;
}

std::optional<std::pair<std::uint64_t, Signature>> Board::last_signed(int rank) const noexcept {
  const std::uint64_t call = layout_->last_call[static_cast<std::size_t>(rank)].load();
  if (call == 0) return std::nullopt;
  const SignatureLine& line = layout_->signatures[rank][(call - 1) % kSignatures];
  return std::pair{call - 1, unpacked(line)};
}

}  // namespace shoal::cuda
