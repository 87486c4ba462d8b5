// Flight records of ranks, as `shoal doctor` reads them: half written, of a dead process, or any other bytes.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "src/cli/diagnosis.h"
#include "src/cli/job_view.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

// The first byte selects where the input is placed in a flight record of one page: at its start, after a valid header, at the
// start of the page, or also in its calls.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr FlightRecordLayout kLayout{4};
  static std::vector<std::byte> file(kLayout.page_offset(1));
  std::ranges::fill(file, std::byte{0});
  FlightRecordHeader header{};
  header.page_bytes = static_cast<std::uint32_t>(kLayout.page_bytes());
  header.pages = 1;
  header.ranks = static_cast<std::int32_t>(kLayout.ranks);
  std::memcpy(file.data(), &header, sizeof header);
  std::byte* const page = file.data() + kLayout.page_offset(0);
  // Only pages that wait have their sets read.
  auto& as_page = *reinterpret_cast<FlightRecordPage*>(page);
  kLayout.absent(as_page)[0] = 0b10;
  kLayout.slow(as_page)[0] = 0b1100;
  for (std::int32_t rank = 0; rank < header.ranks; ++rank) kLayout.members(as_page)[static_cast<std::size_t>(rank)] = rank;
  const std::uint8_t place = size == 0 ? 0 : data[0] % 4;
  const std::uint8_t* bytes = size == 0 ? data : data + 1;
  const std::size_t count = size == 0 ? 0 : size - 1;
  const auto put = [&](std::byte* at) {
    std::memcpy(at, bytes, std::min<std::size_t>(count, static_cast<std::size_t>(file.data() + file.size() - at)));
  };
  if (place == 0) put(file.data());
  if (place == 1) put(file.data() + offsetof(FlightRecordHeader, pid));
  if (place >= 2) put(page);
  if (place == 3) put(page + offsetof(FlightRecordPage, calls));

  JobView job;
  for (int copy = 0; copy < 2; ++copy) {
    auto rank = read_flight_record(file, 1'000'000'000'000, job);
    if (!rank.ok()) return 0;
    rank->life = static_cast<RankView::Life>(count % 4);
    job.seen.push_back(std::move(rank).value());
  }
  const Diagnosis found = diagnose(job, 1e-9);
  if (found.sentence.empty() && !found.suggestion.empty()) std::abort();
  return 0;
}
