// What every call does with the tensors it is given: refuse the unusable ones in c10d's words, and find memory to work on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace shoal::torch {

/// Throws c10::ValueError "shoal <call>: <complaint>". Nothing was started: the group stays usable.
[[noreturn]] void refuse(const char* call, const std::string& complaint);

/// Refuses a tensor that is undefined, sparse or without memory (meta).
void check_tensor(const char* call, const at::Tensor& tensor);

/// The tensor of a list that must hold exactly one; checked.
const at::Tensor& only_tensor(const char* call, const std::vector<at::Tensor>& tensors);

/// The list of a list of lists that must hold exactly one ("input" or "output" names it), of `size` tensors.
const std::vector<at::Tensor>& only_list(const char* call, const char* which, const std::vector<std::vector<at::Tensor>>& lists,
                                         int size);

/// Refuses a tensor that lies on another device than `like`: the tensors of a call share one.
void check_device(const char* call, const at::Tensor& tensor, std::size_t index, const at::Tensor& like);

/// Checks every tensor of a list, which may not be empty; all must have the type and the device of the first.
void check_same_type(const char* call, const std::vector<at::Tensor>& tensors);

/// Checks two lists of the same length, pair by pair: usable tensors of one type. All lie on one device.
void check_pairs(const char* call, const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs);

/// Refuses tensors whose type, device or number of elements is not that of `like`.
void check_like(const char* call, const at::Tensor& tensor, std::size_t index, const at::Tensor& like);

/// Refuses a root outside of the group of `size` ranks, and another root tensor than the only one there is.
void check_root(const char* call, std::int64_t root, int size, std::int64_t root_tensor = 0);

/// Refuses a peer outside of the group of `size` ranks, and `rank` itself.
void check_peer(const char* call, int peer, int rank, int size);

/// Refuses a tensor of the shares of all `size` ranks ("input" or "output" names it) that has not as many elements as they;
/// `rule` says so in c10d's words.
void check_shares(const char* call, const char* rule, const char* which, const at::Tensor& all, const at::Tensor& share,
                  int size);

/// Refuses a list of one tensor for each rank in which one has not the type and device of `own`, or the one of `rank`, this
/// rank, not as many elements. Those of other ranks may have any size.
void check_parts(const char* call, const std::vector<at::Tensor>& parts, int rank, const at::Tensor& own);

/// What only the root passes: the one list in `lists` ("input" or "output" names it), of `size` tensors that check_parts()
/// takes. Elsewhere `lists` must be empty, and so is what is returned.
std::vector<at::Tensor> list_of_root(const char* call, const char* which, const std::vector<std::vector<at::Tensor>>& lists,
                                     bool is_root, int size, int rank, const at::Tensor& own);

/// One list behind the other.
std::vector<at::Tensor> concat(std::vector<at::Tensor> first, const std::vector<at::Tensor>& second);

/// What memory a call can work on.
enum class Reach {
  host,    ///< the host's: tensors of a device are copied there
  device,  ///< that of the tensors' device, in the order of its current stream
};

/// Memory to work on, with the elements in row-major order: the tensor itself unless its elements lie in another order, it is a
/// lazy view (conjugate, negative) or it lies on a device that is out of reach, from which its elements have come when this
/// returns. Every call takes this: the ranks' tensors may have different strides, and elements belong together by their index.
at::Tensor contiguous(const at::Tensor& tensor, Reach reach = Reach::host);

/// The same for a tensor that is only written: other memory than its own has undefined contents.
at::Tensor contiguous_output(const at::Tensor& tensor, Reach reach = Reach::host);

/// What copies the result from the memory worked on to the user's tensor; empty where they are the same.
std::function<void()> copy_back(const at::Tensor& memory, const at::Tensor& tensor);

/// The memory of several tensors of one type, back to back in their order: their own where they lie so already (chunks of one
/// tensor, as object collectives and FSDP make them), else a copy in memory that the call can reach. Thread rule: a value.
class Joined {
 public:
  explicit Joined(std::vector<at::Tensor> parts, Reach reach = Reach::host);

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] bool copies() const { return copy_.defined(); }
  /// Elements of each part, times `factor`.
  [[nodiscard]] std::vector<std::size_t> counts(std::size_t factor = 1) const;
  /// Moves the parts into the copy, or the copy into the parts; nothing where there is no copy. What is moved to a device, or
  /// inside one, arrives in the order of its current stream.
  void pack() const;
  void unpack() const;

  /// What has to be kept alive while the memory is in use.
  [[nodiscard]] std::vector<at::Tensor> memory() const { return copies() ? std::vector<at::Tensor>{copy_} : parts_; }

 private:
  [[nodiscard]] at::Tensor slice(std::size_t part, std::int64_t offset) const;

  std::vector<at::Tensor> parts_;
  Reach reach_;
  at::Tensor copy_;
  void* data_ = nullptr;
};

/// The same for several tensors.
std::function<void()> copy_back(const Joined& joined);

/// Whether all ranks have equal shares.
bool are_equal(const std::vector<std::size_t>& counts);

}  // namespace shoal::torch
