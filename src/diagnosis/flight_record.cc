#include "src/diagnosis/flight_record.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <shoal/limits.h>

#include "src/diagnosis/call_history.h"
#include "src/settings/settings.h"

namespace shoal {

namespace {

namespace fs = std::filesystem;

constexpr auto kKeepDeadJobs = std::chrono::hours(24);
constexpr std::size_t kMaxDeadJobs = 32;

template <typename Clock>
std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// Makes `folder` where it is missing; it must belong to this user alone.
Status own_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return system_error("SHOAL_FLIGHT_RECORD: mkdir " + folder, errno);
  struct stat found {};
  if (::lstat(folder.c_str(), &found) != 0) return system_error("SHOAL_FLIGHT_RECORD: lstat " + folder, errno);
  if (!S_ISDIR(found.st_mode) || found.st_uid != ::geteuid() || (found.st_mode & 022) != 0) {
    return {StatusCode::invalid_argument,
            fmt::format("SHOAL_FLIGHT_RECORD: {} is not a folder that this user alone may write to; name another one, or off",
                        folder)};
  }
  return {};
}

/// Reserves disk blocks for a part of a file: a write to a mapping without such blocks would end the process on a full disk.
/// Returns 0 or an error number.
int take_room(int fd, std::size_t offset, std::size_t bytes) noexcept {
  int error = EINTR;  // signals of the program interrupt the call
  while (error == EINTR) error = ::posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return error;
}

/// One line on standard error, the first time in this process.
void warn_once(int rank, const std::string& reason) {
  static std::atomic_flag warned;
  if (warned.test_and_set()) return;
  fmt::print(stderr,
             "shoal: rank {}: the job continues, but shoal doctor will not see all of it: {}; free disk space, or set "
             "SHOAL_FLIGHT_RECORD to "
             "another folder or off\n",
             rank, reason);
}

bool is_job_name(const std::string& name) {
  return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool is_rank_name(const std::string& name) {
  constexpr std::string_view kPrefix = "rank.";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         name.find_first_not_of("0123456789", kPrefix.size()) == std::string::npos;
}

/// Removes a job's flight records, and its folder unless that holds other files.
void remove_flight_records(const fs::path& job) {
  std::error_code error;
  for (const auto& file : fs::directory_iterator(job, error)) {
    const bool ours = is_rank_name(file.path().filename()) && file.is_regular_file(error) && !file.is_symlink(error);
    if (ours) ::unlink(file.path().c_str());
  }
  ::rmdir(job.c_str());
}

/// Calls `look` with each page in use of the flight record at `path`. Returns its header; null where there is none.
std::unique_ptr<FlightRecordHeader> read_flight_record(
    const std::string& path, const std::function<void(const FlightRecordLayout&, FlightRecordPage&)>& look) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return nullptr;
  const auto read = [fd](std::size_t at, void* to, std::size_t bytes) {
    return ::pread(fd, to, bytes, static_cast<off_t>(at)) == static_cast<ssize_t>(bytes);
  };
  auto header = std::make_unique<FlightRecordHeader>();
  const auto layout = read(0, header.get(), sizeof *header) ? layout_of(*header) : std::nullopt;
  if (layout) {
    FlightRecordPageMemory memory(*layout);
    FlightRecordPage& page = memory.page();
    for (std::uint32_t i = 0; i < header->pages; ++i) {
      if (!read(layout->page_offset(i), &page, layout->page_bytes())) break;
      if (page.state.load() != 0) look(*layout, page);
    }
  } else {
    header.reset();
  }
  ::close(fd);
  return header;
}

/// Whether some process still writes to a flight record in `folder`, as far as this process can see.
bool in_use(const fs::path& folder) {
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error)) {
    FlightRecordHeader header;
    std::ifstream in(file.path(), std::ios::binary);
    if (!in.read(reinterpret_cast<char*>(&header), sizeof header) || header.magic != kFlightRecordMagic) continue;
    if (header.version != kFlightRecordVersion)
      header.locked = 0;  // every version has the fields of the process at the same place
    if (process_lives(header, file.path()).value_or(true)) return true;
  }
  return false;
}

/// Whether the last sign of life of a job's ranks is older than `limit_ns`. A folder's own time is that of the job's start,
/// and a file in memory (tmpfs) has no later one.
bool is_older(const fs::path& folder, std::int64_t limit_ns) {
  std::int64_t last = 0;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error)) {
    const auto header = read_flight_record(file.path(), [](const FlightRecordLayout&, FlightRecordPage&) {});
    if (header == nullptr) continue;
    last = std::max(last, last_sign_ns(*header, nullptr));
    read_flight_record(file.path(), [&](const FlightRecordLayout&, FlightRecordPage& page) {
      last = std::max(last, last_sign_ns(*header, &page));
    });
  }
  return last < limit_ns;
}

// The flight records of this process, which may end without destroying them.
struct Living {
  std::mutex mutex;
  std::vector<FlightRecord*> flight_records;
};
Living& living() {
  static auto* const all = [] {
    auto* made = new Living;  // never destroyed: used at the end of the process
    std::atexit([] {
      const std::scoped_lock lock(living().mutex);
      for (FlightRecord* flight_record : living().flight_records) flight_record->leave_file_of_ended_process();
    });
    return made;
  }();
  return *all;
}

/// Where the page has a message that waits: the rank of the job at its other end.
std::optional<int> other_end(const FlightRecordLayout& layout, FlightRecordPage& page) {
  const auto slow = layout.slow(page);
  const auto found = std::ranges::find_if(slow, [](std::uint64_t part) { return part != 0; });
  if (found == slow.end()) return std::nullopt;
  const auto rank = static_cast<std::size_t>((found - slow.begin()) * 64 + std::countr_zero(*found));
  return rank < layout.ranks ? std::optional(layout.members(page)[rank]) : std::nullopt;
}

}  // namespace

std::optional<FlightRecordLayout> layout_of(const FlightRecordHeader& header) noexcept {
  const FlightRecordLayout layout{static_cast<std::size_t>(std::clamp(header.ranks, 1, kMaxJobRanks))};
  const bool known = header.magic == kFlightRecordMagic && header.version == kFlightRecordVersion &&
                     static_cast<std::int64_t>(layout.ranks) == header.ranks && header.page_bytes == layout.page_bytes() &&
                     header.pages <= kFlightRecordPages;
  return known ? std::optional(layout) : std::nullopt;
}

std::int64_t last_sign_ns(const FlightRecordHeader& header, const FlightRecordPage* page) noexcept {
  if (page == nullptr) return header.system_ns;
  const std::uint64_t seen = page->seen_ns.load();
  const auto made = static_cast<std::uint64_t>(header.steady_ns);
  std::int64_t last = page->state.load() == kFlightRecordFailed ? page->cause_at_ns : 0;
  // The fields may hold any bytes: a sum that leaves its range is no time.
  std::int64_t at = 0;
  if (seen > made && !__builtin_add_overflow(header.system_ns, seen - made, &at)) last = std::max(last, at);
  return std::max(last, header.system_ns);
}

std::optional<bool> process_lives(const FlightRecordHeader& header, const std::string& path) {
  if (header.pid_namespace == own_pid_namespace()) {
    const ProcessState process = process_state(header.pid);
    return process.letter != '\0' && process.started == header.pid_started;
  }
  if (header.locked == 0) return std::nullopt;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return std::nullopt;
  const bool held = ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held;
}

void remove_old_flight_records(const std::string& root) {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> jobs;
  for (const auto& job : fs::directory_iterator(root, error)) {
    const bool ours = is_job_name(job.path().filename()) && job.is_directory(error) && !job.is_symlink(error);
    if (ours) jobs.emplace_back(job.last_write_time(error), job.path());
  }
  std::ranges::sort(jobs);
  const auto limit = fs::file_time_type::clock::now() - kKeepDeadJobs;
  const std::int64_t limit_ns = now_ns<std::chrono::system_clock>() - std::chrono::nanoseconds(kKeepDeadJobs).count();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const auto& [written, job] = jobs[i];
    const bool too_many = jobs.size() - i > kMaxDeadJobs;
    if (!too_many && (written >= limit || !is_older(job, limit_ns))) continue;
    if (!in_use(job)) remove_flight_records(job);
  }
}

ProcessState process_state(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text, '\0');  // an iterator would throw where the process ends between open and read
  // The second field is the program's name in parentheses, and may hold anything.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return {};
  ProcessState state;
  state.letter = text[name_end + 2];
  std::size_t at = name_end + 2;
  constexpr int kFieldsToStart = 19;  // from the third, the state, to the 22nd
  for (int field = 0; field < kFieldsToStart && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  if (at != std::string::npos) state.started = std::strtoull(text.c_str() + at, nullptr, 10);
  if (state.letter == 'Z' || state.letter == 'X') state.letter = '\0';  // ended, but not reaped
  return state;
}

std::uint64_t own_pid_namespace() {
  struct stat found {};
  return ::stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

std::string flight_record_folder() {
  const std::string wanted = setting("SHOAL_FLIGHT_RECORD");
  if (wanted == "off") return {};
  if (!wanted.empty()) return wanted;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  struct stat found {};
  const bool there = runtime != nullptr && *runtime == '/' && ::stat(runtime, &found) == 0 && S_ISDIR(found.st_mode);
  return fmt::format("{}/shoal-{}", there ? runtime : "/tmp", ::geteuid());
}

std::string job_folder_name(std::uint64_t job_id) { return fmt::format("{:016x}", job_id); }

Result<std::shared_ptr<FlightRecord>> FlightRecord::create(const Owner& owner, bool first_of_node) {
  const std::string root = flight_record_folder();
  if (root.empty()) return std::shared_ptr<FlightRecord>();
  // Where the user has not asked for a file, a full or read-only disk is no reason to stop a job.
  const bool wanted = !setting("SHOAL_FLIGHT_RECORD").empty();
  const auto refuse = [&](Status status) -> Result<std::shared_ptr<FlightRecord>> {
    if (wanted) return status;
    if (first_of_node) warn_once(owner.rank, status.message());
    return std::shared_ptr<FlightRecord>();
  };
  const std::string folder = root + "/" + job_folder_name(owner.job_id);
  if (Status status = own_folder(root); !status.ok()) return refuse(std::move(status));
  if (first_of_node) remove_old_flight_records(root);
  if (Status status = own_folder(folder); !status.ok()) return refuse(std::move(status));
  const std::string path = fmt::format("{}/rank.{}", folder, owner.rank);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return refuse(system_error("SHOAL_FLIGHT_RECORD: cannot write " + path, errno));
  const FlightRecordLayout layout{owner.node_of_rank.size()};
  int error = ::ftruncate(fd, static_cast<off_t>(layout.file_bytes())) == 0 ? 0 : errno;
  if (error == 0) error = take_room(fd, 0, layout.page_offset(1));
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = ::mmap(nullptr, layout.file_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  if (error != 0) {
    ::close(fd);
    ::unlink(path.c_str());
    ::rmdir(folder.c_str());
    return refuse(system_error("SHOAL_FLIGHT_RECORD: cannot write " + path, error));
  }
  auto header = std::make_unique<FlightRecordHeader>();
  header->page_bytes = static_cast<std::uint32_t>(layout.page_bytes());
  header->pid = ::getpid();
  header->rank = owner.rank;
  header->ranks = static_cast<std::int32_t>(owner.node_of_rank.size());
  header->pid_started = process_state(header->pid).started;
  header->pid_namespace = own_pid_namespace();
  header->locked = ::flock(fd, LOCK_SH | LOCK_NB) == 0 ? 1 : 0;  // not every file system supports it
  header->job_id = owner.job_id;
  header->system_ns = now_ns<std::chrono::system_clock>();
  header->steady_ns = now_ns<std::chrono::steady_clock>();
  std::array<char, 128> host{};
  ::gethostname(host.data(), host.size() - 1);
  set_text(header->job, owner.job);
  set_text(header->host, host.data());
  std::ranges::transform(owner.node_of_rank, layout.node_of_rank(*static_cast<FlightRecordHeader*>(memory)).begin(),
                         [](int node) { return static_cast<std::uint16_t>(node); });
  header->pages = kFlightRecordPages;
  // The magic is written last: until then a reader finds a file that is still being made.
  constexpr std::size_t kMagicBytes = sizeof header->magic;
  std::memcpy(static_cast<std::byte*>(memory) + kMagicBytes, reinterpret_cast<const std::byte*>(header.get()) + kMagicBytes,
              sizeof *header - kMagicBytes);
  std::atomic_ref(*static_cast<std::uint64_t*>(memory))
      .store(std::bit_cast<std::uint64_t>(header->magic), std::memory_order_release);
  return std::shared_ptr<FlightRecord>(new FlightRecord(path, fd, static_cast<std::byte*>(memory), layout));
}

FlightRecord::FlightRecord(std::string path, int fd, std::byte* memory, const FlightRecordLayout& layout) noexcept
    : path_(std::move(path)), fd_(fd), memory_(memory), layout_(layout), pid_(::getpid()) {
  const std::scoped_lock lock(living().mutex);
  living().flight_records.push_back(this);
}

FlightRecord::~FlightRecord() {
  {
    const std::scoped_lock lock(living().mutex);
    std::erase(living().flight_records, this);
  }
  bool failed = false;
  for (std::uint32_t i = 0; i < with_room_.load(); ++i) failed |= page(i)->state.load() == kFlightRecordFailed;
  if (!failed) remove_file();
  ::munmap(memory_, layout_.file_bytes());
  ::close(fd_);
}

std::string FlightRecord::path_of(int job_rank) const {
  return fmt::format("{}/rank.{}", path_.substr(0, path_.rfind('/')), job_rank);
}

Whereabouts FlightRecord::whereabouts(int job_rank, std::uint64_t name) const {
  Whereabouts in_ours;
  Whereabouts elsewhere;  // in a call of another communicator
  const auto header = read_flight_record(path_of(job_rank), [&](const FlightRecordLayout& layout, FlightRecordPage& page) {
    const auto call = [&](std::uint64_t sequence) {
      return fmt::format("call {} ({})", sequence, to_string(page.calls[sequence % kFlightRecordCalls]));
    };
    const std::uint64_t started = page.started.load();
    std::string words;
    std::optional<int> waits_for;
    if (page.state.load() == kFlightRecordFailed) {
      const std::string cause(page.cause.data(), ::strnlen(page.cause.data(), page.cause.size()));
      words = "its communicator has failed" + (cause.empty() ? cause : " (" + cause + ")");
    } else if (page.ended.load() < started) {
      words = "in " + call(page.ended.load());
    } else if (page.messages_ended.load() < page.messages.load()) {
      const bool known = page.waiting_is_message != 0 && page.waiting_since_ns.load() != 0;
      words = known ? "in " + std::string(page.words.data(), ::strnlen(page.words.data(), page.words.size())) : "";
      if (words.size() <= 3) words = "in a send or recv";
      if (known) waits_for = other_end(layout, page);
    }
    if (page.name != name) {
      const bool busy = !words.empty() && page.state.load() != kFlightRecordFailed;
      if (busy) elsewhere = {fmt::format("{} of communicator {:x}", words, page.communicator), waits_for};
    } else {
      if (words.empty()) words = started > 0 ? "between its calls, after " + call(started - 1) : "in no call yet";
      in_ours = {words, waits_for};
    }
  });
  Whereabouts found = elsewhere.text.empty() ? in_ours : elsewhere;
  if (found.text.empty() || header->pid_namespace != own_pid_namespace()) return found;
  const ProcessState process = process_state(header->pid);
  const bool same = process.letter != '\0' && process.started == header->pid_started;
  if (!same) return found;  // dead, which is reported elsewhere, or on another host
  if (process.letter == 'T' || process.letter == 't') found = {"stopped by a signal, " + found.text};
  return found;
}

std::optional<CallHistory> FlightRecord::calls_of(int job_rank, std::uint64_t name) const {
  std::optional<CallHistory> calls;
  read_flight_record(path_of(job_rank), [&](const FlightRecordLayout&, FlightRecordPage& page) {
    if (page.name == name) calls = latest_calls(page);
  });
  return calls;
}

bool FlightRecord::of_this_process() const noexcept { return ::getpid() == pid_; }

FlightRecordPage* FlightRecord::page(std::uint32_t index) const noexcept {
  return reinterpret_cast<FlightRecordPage*>(memory_ + layout_.page_offset(index));
}

FlightRecordPage* FlightRecord::take_page() noexcept {
  const std::scoped_lock lock(mutex_);
  const std::uint32_t with_room = with_room_.load();
  for (std::uint32_t i = 0; i < with_room; ++i) {
    std::uint32_t free = 0;  // any thread may have given it back
    if (page(i)->state.compare_exchange_strong(free, kFlightRecordOpen)) return page(i);
  }
  if (with_room == kFlightRecordPages) return nullptr;
  if (const int error = take_room(fd_, layout_.page_offset(with_room), layout_.page_bytes()); error != 0) {
    warn_once(reinterpret_cast<const FlightRecordHeader*>(memory_)->rank,
              system_error("cannot write " + path_, error).message());
    return nullptr;
  }
  with_room_.store(with_room + 1);
  page(with_room)->state.store(kFlightRecordOpen);
  return page(with_room);
}

void FlightRecord::remove_file() noexcept {
  if (!of_this_process()) return;
  ::unlink(path_.c_str());
  ::rmdir(path_.substr(0, path_.rfind('/')).c_str());  // succeeds for the last rank
}

void FlightRecord::leave_file_of_ended_process() noexcept {
  bool worth_a_look = false;
  for (std::uint32_t i = 0; i < with_room_.load(); ++i) {
    const FlightRecordPage& one = *page(i);
    worth_a_look |= one.state.load() == kFlightRecordFailed ||
                    (one.state.load() == kFlightRecordOpen &&
                     (one.started.load() != one.ended.load() || one.messages.load() != one.messages_ended.load()));
  }
  if (!worth_a_look) remove_file();
}

FlightRecordEntry::FlightRecordEntry(std::shared_ptr<FlightRecord> flight_record, std::uint32_t communicator, int rank,
                                     std::span<const int> members, std::uint64_t name)
    : flight_record_(std::move(flight_record)), page_(flight_record_ == nullptr ? nullptr : flight_record_->take_page()) {
  if (page_ != nullptr) {
    layout_ = flight_record_->layout();
  } else {
    layout_.ranks = members.size();
    page_ = &own_.emplace(layout_).page();
    page_->state.store(kFlightRecordOpen);
  }
  page_->started.store(0), page_->ended.store(0), page_->messages.store(0), page_->messages_ended.store(0);
  page_->waiting_since_ns.store(0);
  set_late({}, {});
  page_->communicator = communicator;
  page_->name = name;
  page_->rank = rank;
  page_->ranks = static_cast<std::int32_t>(members.size());
  page_->cause_code = 0;
  std::copy_n(members.begin(), std::min(members.size(), layout_.ranks), layout_.members(*page_).begin());
}

void FlightRecordEntry::set_late(std::span<const int> absent, std::span<const int> slow) noexcept {
  const auto write = [](std::span<std::uint64_t> parts, std::span<const int> ranks) {
    std::ranges::fill(parts, 0);
    for (const int rank : ranks) {
      const auto part = static_cast<std::size_t>(rank) / RankSet::kPartRanks;
      if (part < parts.size()) parts[part] |= std::uint64_t{1} << (static_cast<std::size_t>(rank) % RankSet::kPartRanks);
    }
  };
  write(layout_.absent(*page_), absent);
  write(layout_.slow(*page_), slow);
}

FlightRecordEntry::~FlightRecordEntry() {
  const bool of_parent = flight_record_ != nullptr && !flight_record_->of_this_process();
  if (page_->state.load() == kFlightRecordOpen && !of_parent) page_->state.store(0);
}

void FlightRecordEntry::fail(const Status& cause) noexcept {
  page_->cause_code = static_cast<std::uint32_t>(cause.code());
  page_->cause_at_ns = now_ns<std::chrono::system_clock>();
  set_text(page_->cause, cause.message());
  page_->state.store(kFlightRecordFailed, std::memory_order_release);
}

}  // namespace shoal
