// FlightRecord: a file in which a rank records its calls, for `shoal doctor` to read from outside and after the rank's death.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/diagnosis/rank_set.h"
#include "src/diagnosis/signature.h"

namespace shoal {

struct CallHistory;

inline constexpr std::size_t kFlightRecordCalls = 256;    ///< calls of a communicator that are remembered
inline constexpr std::uint32_t kFlightRecordPages = 64;   ///< communicators of a process that are recorded
inline constexpr std::uint32_t kFlightRecordVersion = 4;  ///< of the file format
inline constexpr std::uint32_t kFlightRecordOpen = 1;     ///< FlightRecordPage::state: in use
inline constexpr std::uint32_t kFlightRecordFailed = 2;   ///< closed with `cause`
inline constexpr std::array<char, 8> kFlightRecordMagic{'s', 'h', 'o', 'a', 'l', 'L', 'G', '\n'};

/// What a rank is in.
struct Whereabouts {
  std::string text = {};                        ///< empty: unknown
  std::optional<int> waits_for = std::nullopt;  ///< rank of the job from which or to which it has a message in flight
};

/// One communicator of one rank, as it lies in memory and in the file. A process that reads it from outside may find it half
/// written: any bytes are a valid page. Behind it lie the parts that grow with the job: see FlightRecordLayout.
///
/// A call writes one entry of `calls` (its signature) and the first cache line here, nothing else, and reads no clock.
struct alignas(64) FlightRecordPage {
  std::atomic<std::uint64_t> started{0};         ///< calls that have been started
  std::atomic<std::uint64_t> ended{0};           ///< calls before the oldest in flight: all of them have succeeded
  std::atomic<std::uint64_t> messages{0};        ///< sends and receives that have been started
  std::atomic<std::uint64_t> messages_ended{0};  ///< of them, those that have succeeded
  std::atomic<std::uint32_t> state{0};
  std::uint32_t communicator = 0;  ///< GroupName::short_form(); 0: all ranks of the job
  std::int32_t rank = 0;           ///< of this process, in the communicator
  std::int32_t ranks = 0;
  std::uint64_t name = 0;  ///< GroupName::key: the same on all its ranks

  // While the oldest call in flight waits, rewritten a few times a second at most.
  alignas(64) std::atomic<std::uint64_t> waiting_since_ns{0};  ///< steady clock; 0: nothing has ever waited
  std::atomic<std::uint64_t> seen_ns{0};                       ///< steady clock: when the rank last checked a wait
  std::uint64_t waiting_sequence = 0;                          ///< of a call, or of a message
  std::uint32_t waiting_is_message = 0;
  std::array<char, 192> words;  ///< description of the message that waits

  // Once the communicator has failed.
  std::uint32_t cause_code = 0;
  std::int64_t cause_at_ns = 0;  ///< system clock
  std::array<char, 512> cause;

  std::array<CallSignature, kFlightRecordCalls> calls;  ///< by sequence, modulo kFlightRecordCalls
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// The front of a flight record's file; behind it lies the node of each rank (FlightRecordLayout). Texts end with a zero or
/// with their array.
struct FlightRecordHeader {
  std::array<char, 8> magic = kFlightRecordMagic;
  std::uint32_t version = kFlightRecordVersion;
  std::uint32_t page_bytes = 0;  ///< FlightRecordLayout::page_bytes()
  std::int32_t pid = 0;
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
  std::uint32_t pages = 0;          ///< that the file has room for
  std::uint64_t pid_started = 0;    ///< clock ticks after boot: another process may get the same pid later
  std::uint64_t pid_namespace = 0;  ///< in which the pid is valid
  std::uint64_t locked = 0;         ///< 1: the process holds a lock of the file (flock) while it lives
  std::uint64_t job_id = 0;         ///< random; each job of create() has its own
  std::int64_t system_ns = 0;       ///< both clocks at the time when the file was made
  std::int64_t steady_ns = 0;
  std::array<char, 128> job;  ///< SHOAL_JOB_ID or what the launcher calls it; may be empty
  std::array<char, 128> host;
};

/// Where the parts of a flight record lie, by the number of ranks of the job. A value.
///
///   file = FlightRecordHeader, node of each rank | page | page ...;  page = FlightRecordPage, absent, slow, members
struct FlightRecordLayout {
  std::size_t ranks = 0;

  [[nodiscard]] std::size_t set_parts() const noexcept { return (ranks + RankSet::kPartRanks - 1) / RankSet::kPartRanks; }
  [[nodiscard]] std::size_t page_bytes() const noexcept {
    const std::size_t bytes = sizeof(FlightRecordPage) + 2 * set_parts() * sizeof(std::uint64_t) + ranks * sizeof(std::int32_t);
    return (bytes + alignof(FlightRecordPage) - 1) / alignof(FlightRecordPage) * alignof(FlightRecordPage);
  }
  [[nodiscard]] std::size_t header_bytes() const noexcept {
    constexpr std::size_t kDiskPage = 4096;
    return (sizeof(FlightRecordHeader) + ranks * sizeof(std::uint16_t) + kDiskPage - 1) / kDiskPage * kDiskPage;
  }
  [[nodiscard]] std::size_t page_offset(std::uint32_t index) const noexcept { return header_bytes() + index * page_bytes(); }
  [[nodiscard]] std::size_t file_bytes() const noexcept { return page_offset(kFlightRecordPages); }

  /// Ranks of the communicator that are not in the call: 64 in each part.
  [[nodiscard]] std::span<std::uint64_t> absent(FlightRecordPage& page) const noexcept {
    return {reinterpret_cast<std::uint64_t*>(&page + 1), set_parts()};
  }
  /// Ranks that are, but whose data is missing.
  [[nodiscard]] std::span<std::uint64_t> slow(FlightRecordPage& page) const noexcept {
    return {absent(page).data() + set_parts(), set_parts()};
  }
  /// Rank in the job of each rank.
  [[nodiscard]] std::span<std::int32_t> members(FlightRecordPage& page) const noexcept {
    return {reinterpret_cast<std::int32_t*>(slow(page).data() + set_parts()), ranks};
  }
  [[nodiscard]] std::span<std::uint16_t> node_of_rank(FlightRecordHeader& header) const noexcept {
    return {reinterpret_cast<std::uint16_t*>(&header + 1), ranks};
  }
};

/// Memory for a page that is no part of a mapped file: zero.
class FlightRecordPageMemory {
 public:
  explicit FlightRecordPageMemory(const FlightRecordLayout& layout) : lines_(layout.page_bytes() / sizeof(Line)) {}
  [[nodiscard]] FlightRecordPage& page() noexcept { return *reinterpret_cast<FlightRecordPage*>(lines_.data()); }

 private:
  struct alignas(FlightRecordPage) Line {
    std::array<std::byte, alignof(FlightRecordPage)> bytes{};
  };
  std::vector<Line> lines_;
};

/// Copies as much of `text` as fits.
template <std::size_t Room>
void set_text(std::array<char, Room>& room, std::string_view text) noexcept {
  room.fill('\0');
  text.substr(0, Room - 1).copy(room.data(), Room - 1);
}

/// Of a flight record with this header, which may hold any bytes. Nothing where it is of another version.
std::optional<FlightRecordLayout> layout_of(const FlightRecordHeader& header) noexcept;
/// The latest time (system clock, nanoseconds) at which the rank of a flight record has certainly lived. `page` null: by the
/// header alone.
std::int64_t last_sign_ns(const FlightRecordHeader& header, const FlightRecordPage* page) noexcept;
/// Whether the process of a flight record lives: by its pid where that is valid here, else by the lock of the file at `path`.
/// Nothing where neither shows it.
std::optional<bool> process_lives(const FlightRecordHeader& header, const std::string& path);
/// Removes the flight records of jobs whose processes have all ended and whose last sign of life is more than a day old; of
/// those that ended later only the latest 32 jobs stay. Other files in `root` stay.
void remove_old_flight_records(const std::string& root);

/// A process as the kernel shows it.
struct ProcessState {
  char letter = '\0';         ///< of /proc/PID/stat: R, S, D, T ...; 0: there is no such process
  std::uint64_t started = 0;  ///< clock ticks after boot
};
ProcessState process_state(pid_t pid);
/// The number of this process's PID namespace; 0 where the kernel does not show it.
std::uint64_t own_pid_namespace();

/// The folder for jobs' flight records: what SHOAL_FLIGHT_RECORD names, else shoal-UID in XDG_RUNTIME_DIR or /tmp; empty for
/// "off".
std::string flight_record_folder();
/// The folder of one job below it.
std::string job_folder_name(std::uint64_t job_id);

/// The flight record of one rank, in a file of its own. The file is removed with the FlightRecord, or when the process ends in
/// order. It stays where the rank has died or one of its communicators has failed. Only its owner can read it.
///
/// Thread rule: any thread; each page is its executor's.
class FlightRecord {
 public:
  struct Owner {
    std::uint64_t job_id = 0;
    std::string job;  ///< what users call it
    int rank = 0;
    std::span<const int> node_of_rank;
  };
  /// Creates it in the folder that the settings name. Null where SHOAL_FLIGHT_RECORD is off, or is not set and no file can be
  /// made: training continues without. The first rank of a node reports that on standard error, and calls
  /// remove_old_flight_records(). Errors: invalid_argument or system_error, where SHOAL_FLIGHT_RECORD names a folder that
  /// cannot be used.
  static Result<std::shared_ptr<FlightRecord>> create(const Owner& owner, bool first_of_node);
  ~FlightRecord();
  FlightRecord(const FlightRecord&) = delete;
  FlightRecord& operator=(const FlightRecord&) = delete;

  [[nodiscard]] const FlightRecordLayout& layout() const noexcept { return layout_; }
  /// A page for a communicator; null where all are taken, or where the disk is full, which is reported once.
  FlightRecordPage* take_page() noexcept;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// What another rank of the job is in, by its flight record; as text "in call 3 (barrier) of communicator 1a2b", which may be
  /// another one than `name`, "stopped by a signal, between its calls, after call 4 (barrier)". Empty where its flight record
  /// is not on this host. Reads files: for errors and warnings.
  [[nodiscard]] Whereabouts whereabouts(int job_rank, std::uint64_t name) const;

  /// The latest calls that another rank of the job has recorded of communicator `name`. Nothing where its flight record is not
  /// on this host. Reads files: for errors.
  [[nodiscard]] std::optional<CallHistory> calls_of(int job_rank, std::uint64_t name) const;

  /// False in a child of fork().
  [[nodiscard]] bool of_this_process() const noexcept;

  /// For the end of the process: as the destructor, but the file of a rank that is in a call stays.
  void leave_file_of_ended_process() noexcept;

 private:
  FlightRecord(std::string path, int fd, std::byte* memory, const FlightRecordLayout& layout) noexcept;
  [[nodiscard]] FlightRecordPage* page(std::uint32_t index) const noexcept;
  [[nodiscard]] std::string path_of(int job_rank) const;
  void remove_file() noexcept;

  std::string path_;
  int fd_;
  std::byte* memory_;
  const FlightRecordLayout layout_;
  pid_t pid_;
  std::mutex mutex_;  // held while a page is taken
  // Number of pages, from the first, for which the disk has room. The other pages must not even be read: where the file lies
  // in a tmpfs, a read takes room, and ends the process where there is none.
  std::atomic<std::uint32_t> with_room_{1};
};

/// A page of a FlightRecord, or of ordinary memory where there is none. Given back on destruction, unless its communicator has
/// failed.
class FlightRecordEntry {
 public:
  /// `communicator`, `name`: GroupName::short_form() and key.
  FlightRecordEntry(std::shared_ptr<FlightRecord> flight_record, std::uint32_t communicator, int rank,
                    std::span<const int> members, std::uint64_t name = 0);
  ~FlightRecordEntry();
  FlightRecordEntry(const FlightRecordEntry&) = delete;
  FlightRecordEntry& operator=(const FlightRecordEntry&) = delete;

  [[nodiscard]] FlightRecordPage& operator*() const noexcept { return *page_; }
  [[nodiscard]] FlightRecordPage* operator->() const noexcept { return page_; }

  /// The next call, `sequence`, has been started with this signature.
  void start(std::uint64_t sequence, const CallSignature& signature) noexcept {
    page_->calls[sequence % kFlightRecordCalls] = signature;
    page_->started.store(sequence + 1, std::memory_order_release);
  }
  /// All calls before `sequence` have succeeded. Calls may end out of order.
  void end_before(std::uint64_t sequence) noexcept { page_->ended.store(sequence, std::memory_order_relaxed); }
  void start_message() noexcept { count(page_->messages); }
  void end_message() noexcept { count(page_->messages_ended); }
  [[nodiscard]] const CallSignature& call(std::uint64_t sequence) const noexcept {
    return page_->calls[sequence % kFlightRecordCalls];
  }

  /// The oldest call or message in flight waits. True where the caller is to fill in for which ranks: when the wait has become
  /// long, and then a few times a second at most.
  bool wait(std::uint64_t sequence, bool is_message, std::chrono::steady_clock::time_point now) noexcept {
    const auto now_ns =
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count());
    const bool same = page_->waiting_sequence == sequence && (page_->waiting_is_message != 0) == is_message &&
                      page_->waiting_since_ns.load(std::memory_order_relaxed) != 0;
    if (!same) {
      page_->waiting_sequence = sequence;
      page_->waiting_is_message = is_message ? 1 : 0;
      if (told_) set_late({}, {});  // short waits, of which there are many, write no sets
      told_ = false;
      page_->waiting_since_ns.store(now_ns, std::memory_order_release);
      page_->seen_ns.store(now_ns, std::memory_order_relaxed);
      told_ns_ = now_ns;
      return false;
    }
    if (now_ns - told_ns_ < kTellEveryNs) return false;
    told_ns_ = now_ns;
    told_ = true;
    page_->seen_ns.store(now_ns, std::memory_order_relaxed);
    return true;
  }
  /// For which ranks of the communicator it waits.
  void set_late(std::span<const int> absent, std::span<const int> slow) noexcept;
  void fail(const Status& cause) noexcept;

 private:
  static constexpr std::uint64_t kTellEveryNs = 200'000'000;
  // One thread writes at a time: no need for an atomic addition.
  static void count(std::atomic<std::uint64_t>& counter) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  std::shared_ptr<FlightRecord> flight_record_;
  FlightRecordLayout layout_;
  std::optional<FlightRecordPageMemory> own_;
  FlightRecordPage* page_;
  std::uint64_t told_ns_ = 0;
  bool told_ = false;  // wait() has returned true for this wait
};

}  // namespace shoal
