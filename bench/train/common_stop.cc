#include "bench/train/common_stop.h"

#include <utility>

namespace shoal::train {

Status CommonStop::ask() {
  wish_ = stop_.load() ? 1 : 0;
  Result<Work> posted = control_.all_reduce_async(&wish_, &wish_, 1, DataType::uint8, ReduceOp::max);
  if (!posted.ok()) return posted.status();
  work_ = std::move(posted).value();
  asked_ = true;
  return {};
}

Result<bool> CommonStop::answer() {
  if (!std::exchange(asked_, false)) return false;
  const Status ended = work_.wait();
  if (!ended.ok()) return ended;
  return wish_ != 0;
}

}  // namespace shoal::train
