#include "torch_plugin/ddp/comm_hooks.h"

#include <exception>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/util/ParallelGuard.h>

namespace shoal::ddp {

CommHook bf16_compression() {
  return [](const c10::intrusive_ptr<c10d::ProcessGroup>& group, c10d::GradBucket& bucket) {
    const at::NoGradGuard no_grad;
    at::Tensor gradients = bucket.getBuffer();
    gradients.mul_(1.0 / group->getSize());
    std::vector<at::Tensor> sent{gradients.to(at::kBFloat16)};
    return group->allreduce(sent)->getFuture()->then(
        [gradients, received = sent[0]](c10::ivalue::Future& sum) {
          if (sum.hasError()) std::rethrow_exception(sum.exception_ptr());
          const at::NoGradGuard still_no_grad;    // runs in a thread of the backend
          const c10::ParallelGuard serial(true);  // that thread needs no team of OpenMP threads
          return c10::IValue(gradients.copy_(received));
        },
        c10::TensorType::get());
  };
}

}  // namespace shoal::ddp
