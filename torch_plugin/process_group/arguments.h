// Argument handling of every call: refuses unusable tensors with c10d's wording, and provides memory to work on.
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

/// Refuses a tensor that is undefined, sparse or without memory (meta, wrappers).
void check_tensor(const char* call, const at::Tensor& tensor);

/// The tensor of a list that must hold exactly one; checked.
const at::Tensor& only_tensor(const char* call, const std::vector<at::Tensor>& tensors);

/// The tensors that torch.func.grad, vjp and jvp have wrapped, without their wrappers. PyTorch removes the wrappers of tensors
/// and lists of tensors before it calls a backend, but not those in lists of lists.
std::vector<at::Tensor> unwrapped(std::vector<at::Tensor> tensors);

/// The single list of a list of lists ("input" or "output" names it), with `size` tensors, unwrapped; refuses anything else.
std::vector<at::Tensor> only_list(const char* call, const char* which, const std::vector<std::vector<at::Tensor>>& lists,
                                  int size);

/// Refuses a tensor that lies on another device than `like`: the tensors of a call share one.
void check_device(const char* call, const at::Tensor& tensor, std::size_t index, const at::Tensor& like);

/// Checks every tensor of a list, which may not be empty; all must have the type and the device of the first.
void check_same_type(const char* call, const std::vector<at::Tensor>& tensors);

/// Checks two lists of the same length, pair by pair: usable tensors of one type. All lie on one device.
void check_pairs(const char* call, const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs);

/// Refuses tensors whose type, device or number of elements is not that of `like`.
void check_like(const char* call, const at::Tensor& tensor, std::size_t index, const at::Tensor& like);

/// Refuses a root outside of the group of `size` ranks, and any root tensor other than the only one.
void check_root(const char* call, std::int64_t root, int size, std::int64_t root_tensor = 0);

/// Refuses a peer outside of the group of `size` ranks, and `rank` itself.
void check_peer(const char* call, int peer, int rank, int size);

/// Refuses a tensor with the shares of all `size` ranks ("input" or "output" names it) unless it has as many elements as the
/// shares together; `rule` is c10d's wording of that.
void check_shares(const char* call, const char* rule, const char* which, const at::Tensor& all, const at::Tensor& share,
                  int size);

/// Refuses a list of one tensor per rank if a tensor differs from `own` in type or device, or if the tensor of `rank`, this
/// rank, differs from it in the number of elements. Tensors of other ranks may have any size.
void check_parts(const char* call, const std::vector<at::Tensor>& parts, int rank, const at::Tensor& own);

/// The argument that only the root passes: the single list in `lists` ("input" or "output" names it), of `size` tensors that
/// check_parts() accepts. On other ranks `lists` must be empty, and so is the result.
std::vector<at::Tensor> list_of_root(const char* call, const char* which, const std::vector<std::vector<at::Tensor>>& lists,
                                     bool is_root, int size, int rank, const at::Tensor& own);

/// Concatenates two lists.
std::vector<at::Tensor> concat(std::vector<at::Tensor> first, const std::vector<at::Tensor>& second);

/// The memory that a call can work on.
enum class Reach {
  host,    ///< host memory: tensors of a device are copied there
  device,  ///< memory of the tensors' device, in the order of its current stream
};

/// Memory to work on, with the elements in row-major order. It is the tensor itself, unless its elements lie in another
/// order, it is a lazy view (conjugate, negative), or it lies on a device out of reach; in that case its elements have been
/// copied to the host when this returns. Every call uses this: the ranks' tensors may have different strides, and elements
/// correspond by their index.
at::Tensor contiguous(const at::Tensor& tensor, Reach reach = Reach::host);

/// The same for a tensor that is only written: memory other than its own has undefined contents.
at::Tensor contiguous_output(const at::Tensor& tensor, Reach reach = Reach::host);

/// A function that copies the result from the working memory to the user's tensor; empty if they are the same.
std::function<void()> copy_back(const at::Tensor& memory, const at::Tensor& tensor);

/// The contiguous memory of several tensors of one type, in their order: their own if they are contiguous already (chunks of
/// one tensor, as object collectives and FSDP make them), else a copy in memory that the call can reach. Thread rule: a
/// value.
class Joined {
 public:
  explicit Joined(std::vector<at::Tensor> parts, Reach reach = Reach::host);

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] bool copies() const { return copy_.defined(); }
  /// Elements of each part, times `factor`.
  [[nodiscard]] std::vector<std::size_t> counts(std::size_t factor = 1) const;
  /// Copies the parts into the joined memory, or back; does nothing without a copy. Data copied to a device, or inside one,
  /// arrives in the order of its current stream.
  void pack() const;
  void unpack() const;

  /// The tensors that must stay alive while the memory is in use.
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
