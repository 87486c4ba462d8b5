// The checks of a Request, and the collective that it describes.
#include "src/communicator/request_checks.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

namespace shoal {
namespace {

using internal::check_arguments;
using internal::collective_of;

constexpr std::array<std::size_t, 3> kShareCounts{4, 5, 6};

/// Of a call of rank 1 of 3; "" where it is right.
std::string error_of(const Request& request, const CallOptions& options = {}) {
  const Status status = check_arguments(request, options, 1, 3);
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  return status.message();
}

TEST(Request, DescribesTheCollectiveOfItsName) {
  float in = 0;
  float out = 0;
  const auto type = DataType::float64;
  const auto sum = ReduceOp::sum;
  const struct {
    Request request;
    Collective collective;
  } calls[] = {
      {Request::all_reduce(&in, &out, 7, type, ReduceOp::max), {CollectiveKind::all_reduce, 7, type, ReduceOp::max, 0}},
      {Request::broadcast(&out, 7, type, 2), {CollectiveKind::broadcast, 7, type, sum, 2}},
      {Request::all_gather(&in, &out, 7, type), {CollectiveKind::all_gather, 7, type, sum, 0}},
      {Request::all_gather_v(&in, &out, kShareCounts, type), {CollectiveKind::all_gather, 15, type, sum, 0, kShareCounts}},
      {Request::reduce_scatter(&in, &out, 7, type, ReduceOp::min), {CollectiveKind::reduce_scatter, 7, type, ReduceOp::min, 0}},
      {Request::reduce_scatter_v(&in, &out, kShareCounts, type, ReduceOp::min),
       {CollectiveKind::reduce_scatter, 15, type, ReduceOp::min, 0, kShareCounts}},
      {Request::reduce(&in, &out, 7, type, ReduceOp::avg, 2), {CollectiveKind::reduce, 7, type, ReduceOp::avg, 2}},
      {Request::gather(&in, &out, 7, type, 2), {CollectiveKind::gather, 7, type, sum, 2}},
      {Request::gather_v(&in, &out, kShareCounts, type, 2), {CollectiveKind::gather, 15, type, sum, 2, kShareCounts}},
      {Request::scatter(&in, &out, 7, type, 2), {CollectiveKind::scatter, 7, type, sum, 2}},
      {Request::scatter_v(&in, &out, kShareCounts, type, 2), {CollectiveKind::scatter, 15, type, sum, 2, kShareCounts}},
      {Request::all_to_all(&in, &out, 7, type), {CollectiveKind::all_to_all, 7, type, sum, 0}},
      {Request::barrier(), {CollectiveKind::barrier, 0, DataType::float32, sum, 0}},
  };
  for (const auto& [request, collective] : calls) {
    const std::string name = to_string(collective);
    EXPECT_EQ(error_of(request), "") << name;
    EXPECT_TRUE(collective_of(request) == collective) << name << ", not " << to_string(collective_of(request));
    const bool has_input = request.kind != CollectiveKind::broadcast && request.kind != CollectiveKind::barrier;
    EXPECT_EQ(request.input, has_input ? &in : nullptr) << name;
    EXPECT_EQ(request.output, request.kind == CollectiveKind::barrier ? nullptr : &out) << name;
  }
}

TEST(Request, HasTheCountsOfBothDirections) {
  constexpr std::array<std::size_t, 3> kReceived{1, 5, 2};
  const Collective collective = collective_of(Request::all_to_all_v(nullptr, kShareCounts, nullptr, kReceived, DataType::int8));
  EXPECT_EQ(collective.count, 15);
  EXPECT_EQ(std::vector<std::size_t>(collective.counts.begin(), collective.counts.end()),
            (std::vector<std::size_t>{4, 5, 6, 1, 5, 2}));
}

TEST(Request, IgnoresWhatItsKindDoesNotUse) {
  Request request = Request::broadcast(nullptr, 7, DataType::int8, 2);
  const Collective collective = collective_of(request);
  request.op = ReduceOp::bxor;
  request.peer = 99;
  EXPECT_EQ(error_of(request), "");
  EXPECT_TRUE(collective_of(request) == collective);
  request.kind = CollectiveKind::barrier;
  request.type = static_cast<DataType>(99);
  EXPECT_EQ(error_of(request), "");
  EXPECT_TRUE(collective_of(request) == collective_of(Request::barrier()));
}

TEST(Request, IsRefusedByTheNameOfItsCall) {
  constexpr auto kNegative = static_cast<std::size_t>(-1);
  constexpr std::array<std::size_t, 2> kTwo{1, 1};
  constexpr std::array<std::size_t, 3> kBad{1, 1, kNegative};
  constexpr std::array<std::size_t, 3> kOther{4, 6, 6};
  const auto type = DataType::int8;
  Request counts_of_broadcast = Request::broadcast(nullptr, 1, type, 0);
  counts_of_broadcast.has_counts = true;
  const struct {
    Request request;
    std::string error;
  } calls[] = {
      {{.kind = static_cast<CollectiveKind>(200)}, "unknown kind of call 200"},
      {counts_of_broadcast, "broadcast: a call of this kind has no counts"},
      {Request::all_gather(nullptr, nullptr, 1, static_cast<DataType>(99)), "all_gather: unknown data type 99"},
      {Request::all_reduce(nullptr, nullptr, 1, type, static_cast<ReduceOp>(99)), "all_reduce: unknown reduction 99"},
      {Request::all_reduce(nullptr, nullptr, 1, DataType::float32, ReduceOp::bor), "all_reduce: bor is not defined on float32"},
      {Request::scatter_v(nullptr, nullptr, kTwo, type, 0), "scatter_v: 2 counts for 3 ranks; one for each rank is needed"},
      {Request::gather_v(nullptr, nullptr, {}, type, 0), "gather_v: 0 counts for 3 ranks; one for each rank is needed"},
      {Request::all_to_all_v(nullptr, kTwo, nullptr, kShareCounts, type),
       "all_to_all_v: 2 send_counts for 3 ranks; one for each rank is needed"},
      {Request::all_to_all_v(nullptr, kShareCounts, nullptr, kTwo, type),
       "all_to_all_v: 2 receive_counts for 3 ranks; one for each rank is needed"},
      {Request::all_to_all_v(nullptr, kShareCounts, nullptr, kOther, type),
       "all_to_all_v: send_counts[1] is 5, but receive_counts[1] is 6; on rank 1 the two must be equal"},
      {Request::all_gather_v(nullptr, nullptr, kBad, type),
       "all_gather_v: counts[2], 18446744073709551615, is larger than memory (a negative number?)"},
      {Request::all_to_all_v(nullptr, kShareCounts, nullptr, kBad, type),
       "all_to_all_v: receive_counts[2], 18446744073709551615, is larger than memory (a negative number?)"},
      {Request::all_to_all(nullptr, nullptr, kNegative / 4, type),
       "all_to_all: count 4611686018427387903 is larger than memory (a negative number?)"},
      {Request::reduce(nullptr, nullptr, 1, type, ReduceOp::sum, 3), "reduce: root 3 is not a rank; the ranks are 0 to 2"},
      {Request::send(nullptr, 1, type, kAnySource), "send: peer -1 is not a rank; the ranks are 0 to 2"},
      {Request::recv(nullptr, 1, type, 3), "recv: peer 3 is not a rank; the ranks are 0 to 2"},
  };
  for (const auto& [request, error] : calls) EXPECT_EQ(error_of(request), error);
  EXPECT_EQ(error_of(Request::recv(nullptr, 1, type, kAnySource)), "");
  CallOptions no_time;
  no_time.timeout = std::chrono::milliseconds(0);
  EXPECT_EQ(error_of(Request::barrier(), no_time), "barrier: a timeout of 0 ms is not positive");
}

}  // namespace
}  // namespace shoal
