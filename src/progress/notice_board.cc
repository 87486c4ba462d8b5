#include "src/progress/notice_board.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace shoal {
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kLogEntries = 1024;  // later ones overwrite the oldest
constexpr unsigned kWriterBits = 16;       // of an entry

/// Never 0, as the memory is at the start.
constexpr std::uint64_t log_entry(std::uint64_t number, std::size_t writer) { return (number + 1) << kWriterBits | writer; }

// Values of a cursor that are no position.
constexpr std::uint64_t kTakenBack = ~std::uint64_t{0};
constexpr std::uint64_t kReturns = kTakenBack - 1;

// A notice: words | kind << 32, key of the group, check of the group | payload bytes << 32, set of receivers, payload.
constexpr std::size_t kHeaderWords = 3;
constexpr std::size_t words_of(std::size_t bytes) { return (bytes + 7) / 8; }
constexpr std::size_t lines_of(std::size_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

}  // namespace

struct NoticeBoard::Head {
  Word count;  // of announcements
  alignas(kLineBytes) std::array<Word, kLogEntries> log;
};

struct alignas(kLineBytes) NoticeBoard::Area {
  Word written;  // words in the ring, since the start; by its rank
  Word waiting;  // 1: its rank waits for readers; by its rank
};

namespace {
constexpr std::size_t kHeadBytes = 3 * kPageBytes;
}

NoticeBoard::NoticeBoard(std::span<std::byte> memory, std::size_t ranks, std::size_t own)
    : memory_(memory), ranks_(ranks), own_(own), set_words_((ranks + 63) / 64), taken_back_(ranks), malformed_(ranks) {
  static_assert(sizeof(Head) <= kHeadBytes);
  if (memory.size() <= kHeadBytes) return;
  area_bytes_ = (memory.size() - kHeadBytes) / ranks / kPageBytes * kPageBytes;
  const std::size_t fixed = sizeof(Area) + lines_of(ranks * sizeof(Word));
  if (area_bytes_ > fixed) ring_words_ = (area_bytes_ - fixed) / sizeof(Word);
}

bool NoticeBoard::usable() const noexcept {
  return ranks_ < (std::size_t{1} << kWriterBits) && ring_words_ >= 4 * (kHeaderWords + set_words_ + words_of(kMostBytes));
}

NoticeBoard::Head& NoticeBoard::head() const noexcept { return *reinterpret_cast<Head*>(memory_.data()); }

NoticeBoard::Area& NoticeBoard::area(std::size_t rank) const noexcept {
  return *reinterpret_cast<Area*>(memory_.data() + kHeadBytes + rank * area_bytes_);
}

NoticeBoard::Word& NoticeBoard::cursor(std::size_t reader, std::size_t writer) const noexcept {
  return reinterpret_cast<Word*>(&area(reader) + 1)[writer];
}

NoticeBoard::Word& NoticeBoard::ring(std::size_t writer, std::uint64_t at) const noexcept {
  auto* const first = reinterpret_cast<std::byte*>(&area(writer) + 1) + lines_of(ranks_ * sizeof(Word));
  return reinterpret_cast<Word*>(first)[at % ring_words_];
}

std::uint64_t NoticeBoard::load(std::size_t writer, std::uint64_t at) const noexcept {
  // Ordered by the cursor: the reader acquires `written` before, and releases its cursor after, by an exchange that fails
  // where the writer has taken the notice back.
  return ring(writer, at).load(std::memory_order_relaxed);
}

bool NoticeBoard::write(std::uint32_t kind, const GroupName& group, const Receivers& receivers,
                        std::span<const std::byte> payload) {
  const std::size_t words = kHeaderWords + set_words_ + words_of(payload.size());
  if (written_ + words - oldest_ > ring_words_) oldest_ = oldest_cursor();
  if (written_ + words - oldest_ > ring_words_) return false;
  std::uint64_t at = written_;
  const auto put = [&](std::uint64_t word) { ring(own_, at++).store(word, std::memory_order_relaxed); };
  put(words | std::uint64_t{kind} << 32);
  put(group.key);
  put(group.check | std::uint64_t{payload.size()} << 32);
  for (const std::uint64_t word : receivers.words()) put(word);
  for (std::size_t i = 0; i < payload.size(); i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, payload.data() + i, std::min(sizeof word, payload.size() - i));
    put(word);
  }
  written_ = at;
  area(own_).written.store(written_, std::memory_order_release);
  announce();
  return true;
}

void NoticeBoard::announce() noexcept {
  // seq_cst: either a rank that is about to sleep sees it, or this one sees that it sleeps (Transport::wake()). A reader that
  // sees the count sees what was written before it, even where the log lacks the entry still.
  const std::uint64_t number = head().count.fetch_add(1, std::memory_order_seq_cst);
  head().log[number % kLogEntries].store(log_entry(number, own_), std::memory_order_release);
  if (number == seen_) ++seen_;
}

std::uint64_t NoticeBoard::oldest_cursor() const noexcept {
  std::uint64_t oldest = written_;
  for (std::size_t reader = 0; reader < ranks_; ++reader) {
    if (reader == own_ || taken_back_[reader]) continue;
    // Acquires the reader's last reads of the words before. An invalid cursor counts as one that lags most.
    const std::uint64_t at = cursor(reader, own_).load(std::memory_order_seq_cst);
    const std::uint64_t behind = std::min<std::uint64_t>(written_ - at, ring_words_);
    oldest = std::min(oldest, written_ - std::min(behind, written_));
  }
  return oldest;
}

std::optional<std::size_t> NoticeBoard::slowest() const {
  std::optional<std::size_t> found;
  std::uint64_t most = 0;
  for (std::size_t reader = 0; reader < ranks_; ++reader) {
    if (reader == own_ || taken_back_[reader]) continue;
    const std::uint64_t behind = written_ - cursor(reader, own_).load(std::memory_order_acquire);
    if (behind > most) {
      most = behind;
      found = reader;
    }
  }
  return found;
}

std::optional<std::vector<NoticeBoard::Notice>> NoticeBoard::take_back(std::size_t reader) {
  // Where this succeeds, the reader's own exchange fails, and it drops what it may have copied.
  std::uint64_t at = cursor(reader, own_).exchange(kTakenBack, std::memory_order_acq_rel);
  taken_back_[reader] = true;
  std::vector<Notice> notices;
  if (written_ - at > ring_words_) return std::nullopt;
  while (at != written_) {
    const std::size_t words = notice_words(own_, at, written_);
    if (words == 0) return std::nullopt;
    if (is_for(reader, own_, at)) notices.push_back(copy(own_, at));
    at += words;
  }
  return notices;
}

bool NoticeBoard::returns(std::size_t reader) const { return cursor(reader, own_).load(std::memory_order_acquire) == kReturns; }

void NoticeBoard::admit(std::size_t reader) {
  taken_back_[reader] = false;
  cursor(reader, own_).store(written_, std::memory_order_release);
}

void NoticeBoard::set_waiting(bool waiting) {
  if (std::exchange(waiting_, waiting) == waiting) return;
  // seq_cst, as the readers' exchanges: either the reader sees it, or this rank sees the reader's cursor.
  area(own_).waiting.store(waiting ? 1 : 0, std::memory_order_seq_cst);
}

bool NoticeBoard::has_news() const noexcept { return head().count.load(std::memory_order_seq_cst) != seen_; }

void NoticeBoard::read(News& news) {
  const std::uint64_t count = head().count.load(std::memory_order_seq_cst);
  const std::uint64_t first = std::exchange(seen_, count);
  bool known = count - first <= kLogEntries;
  for (std::uint64_t number = first; known && number != count; ++number) {
    const std::uint64_t entry = head().log[number % kLogEntries].load(std::memory_order_acquire);
    const std::size_t writer = entry & ((1U << kWriterBits) - 1);
    // An entry may be missing still, or overwritten already.
    known = writer < ranks_ && entry == log_entry(number, writer);
    if (known) read_from(writer, news);
  }
  for (std::size_t writer = 0; !known && writer < ranks_; ++writer) read_from(writer, news);
}

void NoticeBoard::read_from(std::size_t writer, News& news) {
  if (writer == own_ || malformed_[writer]) return;
  // What is written later is announced later.
  const std::uint64_t end = area(writer).written.load(std::memory_order_acquire);
  bool any = false;
  Step step = Step::again;
  while ((step = read_one(writer, end, news)) == Step::read || step == Step::again) any |= step == Step::read;
  if (step == Step::malformed) {
    malformed_[writer] = true;
    news.malformed.push_back(writer);
  }
  if (any && area(writer).waiting.load(std::memory_order_seq_cst) != 0) {
    announce();
    news.writers_waiting.push_back(writer);
  }
}

NoticeBoard::Step NoticeBoard::read_one(std::size_t writer, std::uint64_t end, News& news) {
  Word& own_cursor = cursor(own_, writer);
  std::uint64_t at = own_cursor.load(std::memory_order_acquire);
  if (at == kTakenBack) {
    if (!own_cursor.compare_exchange_strong(at, kReturns, std::memory_order_seq_cst)) return Step::again;
    announce();
    news.writers_waiting.push_back(writer);
    return Step::end;
  }
  if (at == kReturns) return Step::end;
  // Admitted since `end` was read: what comes then is announced later.
  if (at == end || area(writer).written.load(std::memory_order_acquire) == at) return Step::end;
  const std::size_t words = end - at > ring_words_ ? 0 : notice_words(writer, at, end);
  const bool mine = words != 0 && is_for(own_, writer, at);
  Notice notice;
  if (mine) notice = copy(writer, at);
  if (words == 0) return own_cursor.load(std::memory_order_acquire) == at ? Step::malformed : Step::again;
  // Fails where the writer has taken back the notice, and may have overwritten it while it was copied.
  if (!own_cursor.compare_exchange_strong(at, at + words, std::memory_order_seq_cst)) return Step::again;
  if (mine) news.notices.push_back({writer, std::move(notice)});
  return Step::read;
}

std::size_t NoticeBoard::notice_words(std::size_t writer, std::uint64_t at, std::uint64_t end) const noexcept {
  const std::size_t fixed = kHeaderWords + set_words_;
  if (end - at < fixed) return 0;
  const std::size_t words = load(writer, at) & 0xFFFFFFFF;
  const std::size_t bytes = load(writer, at + 2) >> 32;
  return bytes <= kMostBytes && words == fixed + words_of(bytes) && words <= end - at ? words : 0;
}

bool NoticeBoard::is_for(std::size_t reader, std::size_t writer, std::uint64_t at) const noexcept {
  return (load(writer, at + kHeaderWords + reader / 64) >> (reader % 64) & 1) != 0;
}

// The words may change meanwhile: what counts is checked here once more.
NoticeBoard::Notice NoticeBoard::copy(std::size_t writer, std::uint64_t at) const {
  Notice notice;
  notice.kind = static_cast<std::uint32_t>(load(writer, at) >> 32);
  const std::uint64_t third = load(writer, at + 2);
  notice.group = {load(writer, at + 1), static_cast<std::uint32_t>(third) % GroupName::kCheckLimit};
  notice.payload.resize(std::min<std::size_t>(third >> 32, kMostBytes));
  at += kHeaderWords + set_words_;
  for (std::size_t i = 0; i < notice.payload.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = load(writer, at++);
    std::memcpy(notice.payload.data() + i, &word, std::min(sizeof word, notice.payload.size() - i));
  }
  return notice;
}

}  // namespace shoal
