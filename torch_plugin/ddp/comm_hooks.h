// What happens to a bucket of gradients between the ranks, where it is not a plain average.
#pragma once

#include <functional>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace shoal::ddp {

/// Called for every bucket, in the order of the buckets, as soon as backward has filled it. Returns at once, with a future of
/// the tensor (or a list of one) that takes the place of the bucket's buffer on every rank: as a rule the average over the
/// ranks of `group`, in the buffer's type and size. The buffer may be written to, and may be the result. What the future fails
/// with, backward throws. Thread rule: called in the thread that backward runs in; callbacks of the future run in the backend's
/// thread.
using CommHook = std::function<c10::intrusive_ptr<c10::ivalue::Future>(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                                       c10d::GradBucket& bucket)>;

/// Gradients travel as bfloat16: half the bytes of float32. They are divided by the number of ranks first, and rounded before
/// they are sent and where the backend rounds its sums: with shoal a relative error of about 2^-8 an element, and no overflow
/// that float32 would not have.
CommHook bf16_compression();

}  // namespace shoal::ddp
