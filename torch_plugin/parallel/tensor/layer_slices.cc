#include "torch_plugin/parallel/tensor/layer_slices.h"

#include <utility>

#include <c10/util/Exception.h>

namespace shoal::parallel {
namespace {

namespace nn = ::torch::nn;
using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;
using Group = LayerSlices::Group;

void add_up(at::Tensor tensor, const Group& group) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  group->allreduce(tensors)->wait();
}

class SharedInput : public ::torch::autograd::Function<SharedInput> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const Group& group) {
    context->saved_data["group"] = c10::IValue::make_capsule(group);
    return input.view_as(input);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto group = c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(context->saved_data["group"].toCapsule());
    at::Tensor sum = gradients[0].clone();  // others may hold the gradient that arrived
    add_up(sum, group);
    return {std::move(sum), at::Tensor()};
  }
};

class Sum : public ::torch::autograd::Function<Sum> {
 public:
  static at::Tensor forward(AutogradContext*, const at::Tensor& partial, const Group& group) {
    at::Tensor sum = partial.clone();
    add_up(sum, group);
    return sum;
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) { return {gradients[0], at::Tensor()}; }
};

void refuse_groups(const nn::Conv2d& layer, const std::string& name) {
  TORCH_CHECK_VALUE(layer->options.groups() == 1, name, " has ", layer->options.groups(),
                    " groups: only a convolution without groups is split by its inputs or outputs");
}

}  // namespace

void LayerSlices::check_divisible(std::int64_t whole, const char* what, const std::string& name) const {
  TORCH_CHECK_VALUE(whole % count() == 0, name, " has ", whole, " ", what, ", which tensor_parallel_degree ", count(),
                    " does not divide");
}

void LayerSlices::check_outputs(const nn::Linear& layer, const std::string& name) const {
  check_divisible(layer->options.out_features(), "outputs", name);
}

void LayerSlices::check_outputs(const nn::Conv2d& layer, const std::string& name) const {
  refuse_groups(layer, name);
  check_divisible(layer->options.out_channels(), "output channels", name);
}

void LayerSlices::check_inputs(const nn::Linear& layer, const std::string& name) const {
  check_divisible(layer->options.in_features(), "inputs", name);
}

void LayerSlices::check_inputs(const nn::Conv2d& layer, const std::string& name) const {
  refuse_groups(layer, name);
  check_divisible(layer->options.in_channels(), "input channels", name);
}

void LayerSlices::check_channels(const nn::BatchNorm2d& layer, const std::string& name) const {
  check_divisible(layer->options.num_features(), "channels", name);
}

void LayerSlices::check_channels(const nn::Conv2d& layer, const std::string& name) const {
  const std::int64_t channels = layer->options.in_channels();
  TORCH_CHECK_VALUE(layer->options.groups() == channels, name, " has ", layer->options.groups(), " groups and ", channels,
                    " input channels: only a depthwise convolution is split by channels");
  check_divisible(layer->options.out_channels(), "output channels", name);
  check_divisible(channels, "input channels", name);
}

void LayerSlices::keep_slice(at::Tensor& tensor, std::int64_t dimension, const std::string& name) {
  if (!tensor.defined()) return;  // a layer without bias, a norm without statistics
  const at::NoGradGuard no_grad;
  const std::int64_t whole = tensor.size(dimension);
  const std::int64_t size = whole / count();
  tensor.set_data(tensor.narrow(dimension, index() * size, size).clone(at::MemoryFormat::Contiguous));
  split_.push_back({name, dimension, whole});
}

void LayerSlices::split_outputs(nn::Linear& layer, const std::string& name) {
  if (count() == 1) return;
  check_outputs(layer, name);
  layer->options.out_features(layer->options.out_features() / count());
  keep_slice(layer->weight, 0, name + ".weight");
  keep_slice(layer->bias, 0, name + ".bias");
}

void LayerSlices::split_outputs(nn::Conv2d& layer, const std::string& name) {
  if (count() == 1) return;
  check_outputs(layer, name);
  layer->options.out_channels(layer->options.out_channels() / count());
  keep_slice(layer->weight, 0, name + ".weight");
  keep_slice(layer->bias, 0, name + ".bias");
}

void LayerSlices::split_inputs(nn::Linear& layer, const std::string& name) {
  if (count() == 1) return;
  check_inputs(layer, name);
  layer->options.in_features(layer->options.in_features() / count());
  keep_slice(layer->weight, 1, name + ".weight");
}

void LayerSlices::split_inputs(nn::Conv2d& layer, const std::string& name) {
  if (count() == 1) return;
  check_inputs(layer, name);
  layer->options.in_channels(layer->options.in_channels() / count());
  keep_slice(layer->weight, 1, name + ".weight");
}

void LayerSlices::split_channels(nn::BatchNorm2d& layer, const std::string& name) {
  if (count() == 1) return;
  check_channels(layer, name);
  layer->options.num_features(layer->options.num_features() / count());
  keep_slice(layer->weight, 0, name + ".weight");
  keep_slice(layer->bias, 0, name + ".bias");
  keep_slice(layer->running_mean, 0, name + ".running_mean");
  keep_slice(layer->running_var, 0, name + ".running_var");
}

void LayerSlices::split_channels(nn::Conv2d& layer, const std::string& name) {
  if (count() == 1) return;
  check_channels(layer, name);
  const std::int64_t outputs = layer->options.out_channels() / count();
  const std::int64_t size = layer->options.in_channels() / count();
  layer->options.in_channels(size).groups(size).out_channels(outputs);
  keep_slice(layer->weight, 0, name + ".weight");
  keep_slice(layer->bias, 0, name + ".bias");
}

at::Tensor LayerSlices::by_inputs(nn::Linear& layer, const at::Tensor& input) const {
  if (count() == 1) return layer->forward(input);
  const at::Tensor whole = sum(at::linear(input, layer->weight));
  return layer->bias.defined() ? whole + layer->bias : whole;
}

at::Tensor LayerSlices::by_inputs(nn::Conv2d& layer, const at::Tensor& input) const {
  if (count() == 1) return layer->forward(input);
  // The layer pads as its options say, whatever the mode: it adds no bias while it has none.
  const at::Tensor bias = std::exchange(layer->bias, at::Tensor());
  at::Tensor partial;
  try {
    partial = layer->forward(input);
  } catch (...) {
    layer->bias = bias;
    throw;
  }
  layer->bias = bias;
  const at::Tensor whole = sum(partial);
  return bias.defined() ? whole + bias.view({-1, 1, 1}) : whole;
}

at::Tensor LayerSlices::shared_input(const at::Tensor& input) const {
  return count() == 1 ? input : SharedInput::apply(input, group_);
}

at::Tensor LayerSlices::sum(const at::Tensor& partial) const { return count() == 1 ? partial : Sum::apply(partial, group_); }

}  // namespace shoal::parallel
