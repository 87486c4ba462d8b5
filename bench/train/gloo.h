// Gloo, which is part of torch, as a backend to compare with.
#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <shoal/status.h>

namespace shoal::train {

/// A ProcessGroupGloo over all ranks that listens on `address` of this host. Errors: unsupported if this was built without
/// Gloo's headers; system_error with Gloo's message.
Result<c10::intrusive_ptr<c10d::Backend>> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    const std::string& address, std::chrono::milliseconds timeout);

}  // namespace shoal::train
