// How ranks combine a bucket of gradients, if not by a plain average.
#pragma once

#include <functional>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace shoal::ddp {

/// Called for every bucket, in the order of the buckets, as soon as backward has filled it. Returns at once, with a future of
/// the tensor (or a list of one tensor) that replaces the bucket's buffer on every rank: normally the average over the ranks
/// of `group`, in the buffer's type and size. The hook may write to the buffer, and the buffer may be the result. If the
/// future fails, backward throws its error. Thread rule: called in the thread that runs backward; callbacks of the future run
/// in a thread of the backend.
using CommHook = std::function<c10::intrusive_ptr<c10::ivalue::Future>(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                                       c10d::GradBucket& bucket)>;

/// Gradients are sent as bfloat16: half the bytes of float32. They are divided by the number of ranks first. They are rounded
/// before they are sent and wherever the backend rounds its sums: with shoal a relative error of about 2^-8 per element, and
/// no overflow that float32 would not have.
CommHook bf16_compression();

}  // namespace shoal::ddp
