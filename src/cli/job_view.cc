#include "src/cli/job_view.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string_view>

#include <fmt/format.h>

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kListedAfterEnd_ns = 3'600'000'000'000;

template <std::size_t Room>
std::string text_of(const std::array<char, Room>& room) {
  std::string text(room.data(), ::strnlen(room.data(), Room));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = '?';  // safe for a terminal
  }
  return text;
}

/// `parts`: a bit for each rank.
std::vector<int> ranks_in(std::span<const std::uint64_t> parts, int ranks) {
  std::vector<int> list;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (std::uint64_t bits = parts[part]; bits != 0; bits &= bits - 1) {
      const int rank = static_cast<int>(part * RankSet::kPartRanks) + std::countr_zero(bits);
      if (rank < ranks) list.push_back(rank);
    }
  }
  return list;
}

CommunicatorView view_of(const FlightRecordLayout& layout, FlightRecordPage& page, std::int64_t now_ns) {
  CommunicatorView view;
  view.number = page.communicator;
  view.name = page.name;
  view.ranks = std::clamp(page.ranks, 0, static_cast<int>(layout.ranks));
  view.rank = std::clamp(page.rank, 0, std::max(0, view.ranks - 1));
  const auto members = layout.members(page).first(static_cast<std::size_t>(view.ranks));
  view.members.assign(members.begin(), members.end());
  view.started = page.started.load();
  view.ended = std::min(view.started, page.ended.load());
  view.messages_open = page.messages.load() > page.messages_ended.load();
  const std::uint64_t since = page.waiting_since_ns.load();
  const bool is_message = page.waiting_is_message != 0;
  // The record of a wait stays in the file after the wait has ended.
  const bool call_waits = !is_message && page.waiting_sequence >= view.ended && page.waiting_sequence < view.started;
  if (since != 0 && (is_message ? view.messages_open && view.started == view.ended : call_waits)) {
    const auto now = static_cast<std::uint64_t>(now_ns);
    view.wait =
        CommunicatorView::Wait{page.waiting_sequence, is_message, now > since ? 1e-9 * static_cast<double>(now - since) : 0.0,
                               ranks_in(layout.absent(page), view.ranks), ranks_in(layout.slow(page), view.ranks)};
    if (is_message) view.message = text_of(page.words);
  }
  if (page.state.load() == kFlightRecordFailed) {
    const bool known = page.cause_code > 0 && page.cause_code <= static_cast<std::uint32_t>(StatusCode::internal);
    view.cause = CommunicatorView::Cause{known ? static_cast<StatusCode>(page.cause_code) : StatusCode::internal,
                                         page.cause_at_ns, text_of(page.cause)};
  }
  const std::uint64_t remembered = std::min<std::uint64_t>(view.started, kFlightRecordCalls);
  for (std::uint64_t call = view.started - remembered; call < view.started; ++call)
    view.calls.push_back(page.calls[call % kFlightRecordCalls]);
  return view;
}

/// Updates `job` and `rank` by the time and the lock of the file, which are not part of its contents.
void look_at_file(const std::string& path, const std::string& bytes, JobView& job, RankView& rank) {
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0)
    job.last_sign_ns = std::max(job.last_sign_ns, std::int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec);
  if (rank.life != RankView::Life::unknown) return;
  auto header = std::make_unique<FlightRecordHeader>();
  std::memcpy(header.get(), bytes.data(), sizeof *header);
  if (!process_lives(*header, path).value_or(true)) rank.life = RankView::Life::dead;
}

/// Whether the file is still being created: its owner writes the magic number last.
bool is_being_made(std::string_view file) {
  return file.substr(0, sizeof kFlightRecordMagic).find_first_not_of('\0') == std::string_view::npos;
}

}  // namespace

std::optional<CallSignature> CommunicatorView::call(std::uint64_t sequence) const noexcept {
  const std::uint64_t first = started - calls.size();
  if (sequence < first || sequence >= started) return std::nullopt;
  return calls[sequence - first];
}

const RankView* JobView::find(int rank) const noexcept {
  const auto found = std::ranges::find(seen, rank, &RankView::rank);
  return found == seen.end() ? nullptr : &*found;
}

bool JobView::has_ended() const noexcept {
  return std::ranges::all_of(seen, [](const RankView& rank) { return rank.life == RankView::Life::dead; });
}

JobList list_of(const std::vector<JobView>& jobs, std::int64_t now_ns, bool all) {
  JobList list;
  for (const JobView& job : jobs) {
    if (!job.has_ended()) {
      list.running.push_back(&job);
    } else if (all || job.last_sign_ns >= now_ns - kListedAfterEnd_ns) {
      list.ended.push_back(&job);
    } else {
      ++list.left_out;
    }
  }
  std::ranges::stable_sort(list.running, std::greater{}, &JobView::started_ns);
  std::ranges::stable_sort(list.ended, std::greater{}, &JobView::last_sign_ns);
  return list;
}

Result<RankView> read_flight_record(std::span<const std::byte> file, std::int64_t now_ns, JobView& job) {
  const auto refuse = [](std::string what) { return Status(StatusCode::invalid_argument, std::move(what)); };
  auto header = std::make_unique<FlightRecordHeader>();
  if (file.size() < sizeof *header) return refuse("the file is too short for a flight record");
  std::memcpy(header.get(), file.data(), sizeof *header);
  if (header->magic != kFlightRecordMagic) return refuse("the file is not a flight record");
  const auto layout = layout_of(*header);
  if (!layout) return refuse(fmt::format("the flight record is of another version of shoal (format {})", header->version));
  if (file.size() < layout->page_offset(header->pages)) return refuse("the flight record is truncated");

  job.id = job_folder_name(header->job_id);
  job.name = text_of(header->job);
  job.ranks = header->ranks;
  job.started_ns = header->system_ns;
  job.last_sign_ns = std::max(job.last_sign_ns, last_sign_ns(*header, nullptr));
  std::vector<std::uint16_t> nodes(layout->ranks);
  std::memcpy(nodes.data(), file.data() + sizeof *header, nodes.size() * sizeof nodes[0]);
  job.node_of_rank.assign(nodes.begin(), nodes.end());

  RankView rank;
  rank.rank = header->rank;
  rank.pid = header->pid;
  rank.host = text_of(header->host);
  if (header->pid > 0 && header->pid_namespace == own_pid_namespace()) {
    const ProcessState process = process_state(header->pid);
    rank.letter = process.letter;
    const bool same = process.letter != '\0' && process.started == header->pid_started;
    const bool stopped = process.letter == 'T' || process.letter == 't';
    rank.life = !same ? RankView::Life::dead : stopped ? RankView::Life::stopped : RankView::Life::running;
  }
  FlightRecordPageMemory memory(*layout);
  FlightRecordPage& page = memory.page();
  for (std::uint32_t i = 0; i < header->pages; ++i) {
    std::memcpy(static_cast<void*>(&page), file.data() + layout->page_offset(i), layout->page_bytes());
    if (page.state.load() == 0) continue;
    rank.communicators.push_back(view_of(*layout, page, now_ns));
    job.last_sign_ns = std::max(job.last_sign_ns, last_sign_ns(*header, &page));
  }
  return rank;
}

std::vector<JobView> read_jobs(const std::string& folder, std::vector<std::string>& complaints) {
  std::vector<JobView> jobs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!entry.is_directory(error)) continue;
    JobView job;
    for (const auto& file : fs::directory_iterator(entry.path(), error)) {
      std::ifstream in(file.path(), std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      auto rank = read_flight_record(std::as_bytes(std::span(bytes)),
                                     std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), job);
      if (rank.ok()) {
        look_at_file(file.path(), bytes, job, *rank);
        job.seen.push_back(std::move(rank).value());
      } else if (!is_being_made(bytes) && fs::exists(file.path(), error)) {
        complaints.push_back(fmt::format("{}: {}", file.path().string(), rank.status().message()));
      }
    }
    std::ranges::sort(job.seen, {}, &RankView::rank);
    if (!job.seen.empty()) jobs.push_back(std::move(job));
  }
  std::ranges::sort(jobs, std::greater{}, &JobView::started_ns);
  return jobs;
}

}  // namespace shoal
