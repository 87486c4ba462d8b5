// Flight records of the largest job, and of files that claim to be of a larger one.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include <shoal/limits.h>

#include "src/cli/job_view.h"
#include "src/diagnosis/flight_record.h"

namespace shoal {
namespace {

/// Of rank 5, which waits for the first and the last rank in the first call of the job's communicator.
std::vector<std::byte> file_of_job(int ranks) {
  const FlightRecordLayout layout{static_cast<std::size_t>(ranks)};
  std::vector<std::byte> file(layout.page_offset(1));
  FlightRecordHeader header{};
  header.page_bytes = static_cast<std::uint32_t>(layout.page_bytes());
  header.rank = 5;
  header.ranks = ranks;
  header.pages = 1;
  std::memcpy(file.data(), &header, sizeof header);
  std::vector<std::uint16_t> nodes(layout.ranks);
  std::iota(nodes.begin(), nodes.end(), std::uint16_t{0});
  std::memcpy(file.data() + sizeof header, nodes.data(), nodes.size() * sizeof nodes[0]);

  FlightRecordPageMemory memory(layout);
  FlightRecordPage& page = memory.page();
  page.state.store(kFlightRecordOpen);
  page.rank = 5;
  page.ranks = ranks;
  page.started.store(1);
  page.waiting_since_ns.store(1);
  const auto last = static_cast<std::size_t>(ranks - 1);
  layout.absent(page)[0] = 1;
  layout.slow(page)[last / 64] = std::uint64_t{1} << (last % 64);
  std::iota(layout.members(page).begin(), layout.members(page).end(), 0);
  std::memcpy(file.data() + layout.page_offset(0), static_cast<const void*>(&page), layout.page_bytes());
  return file;
}

TEST(FlightRecordLayout, GrowsWithTheJob) {
  const FlightRecordLayout small{2};
  EXPECT_EQ(small.header_bytes(), 4096U);
  EXPECT_LT(small.page_bytes(), sizeof(FlightRecordPage) + 128);
  const FlightRecordLayout large{kMaxJobRanks};
  EXPECT_GE(large.header_bytes(), 2U * kMaxJobRanks);
  EXPECT_GE(large.page_bytes(), sizeof(FlightRecordPage) + 4U * kMaxJobRanks + kMaxJobRanks / 4);
  EXPECT_EQ(large.page_bytes() % alignof(FlightRecordPage), 0U);
}

TEST(FlightRecordLayout, RanksOfTheLargestJobAreNamed) {
  for (const int ranks : {64, 65, 5000, kMaxJobRanks}) {
    JobView job;
    const auto rank = read_flight_record(file_of_job(ranks), 2'000'000'000, job);
    ASSERT_TRUE(rank.ok()) << rank.status().to_string();
    EXPECT_EQ(job.ranks, ranks);
    EXPECT_EQ(job.node_of_rank.size(), static_cast<std::size_t>(ranks));
    EXPECT_EQ(job.node_of_rank.back(), ranks - 1);
    ASSERT_EQ(rank->communicators.size(), 1U);
    const CommunicatorView& view = rank->communicators[0];
    EXPECT_EQ(view.members.size(), static_cast<std::size_t>(ranks));
    EXPECT_EQ(view.members.back(), ranks - 1);
    ASSERT_TRUE(view.wait);
    EXPECT_EQ(view.wait->absent, std::vector<int>{0});
    EXPECT_EQ(view.wait->slow, std::vector<int>{ranks - 1});
  }
}

TEST(FlightRecordLayout, FileOfLargerJobIsRefused) {
  for (const int ranks : {0, -1, kMaxJobRanks + 1}) {
    auto file = file_of_job(2);
    std::memcpy(file.data() + offsetof(FlightRecordHeader, ranks), &ranks, sizeof ranks);
    JobView job;
    EXPECT_FALSE(read_flight_record(file, 2'000'000'000, job).ok()) << ranks;
  }
  auto truncated = file_of_job(2);
  truncated.pop_back();
  JobView job;
  EXPECT_FALSE(read_flight_record(truncated, 2'000'000'000, job).ok());
}

// Without a file it is in memory of its own.
TEST(FlightRecordLayout, EntryWithoutFileNamesItsRanks) {
  std::vector<int> members(5000);
  std::iota(members.begin(), members.end(), 100);
  FlightRecordEntry entry(nullptr, 1, 7, members);
  entry.set_late({}, std::vector<int>{0, 4999});
  const FlightRecordLayout layout{members.size()};
  EXPECT_EQ(layout.members(*entry).back(), 5099);
  EXPECT_EQ(layout.slow(*entry)[0], 1U);
  EXPECT_EQ(layout.slow(*entry)[4999 / 64], std::uint64_t{1} << (4999 % 64));
  entry.set_late({}, {});
  EXPECT_EQ(layout.slow(*entry)[0], 0U);
}

}  // namespace
}  // namespace shoal
