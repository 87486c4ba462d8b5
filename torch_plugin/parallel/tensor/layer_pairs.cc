#include "torch_plugin/parallel/tensor/layer_pairs.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "torch_plugin/process_group/conversions.h"

namespace shoal::parallel {
namespace {

namespace nn = ::torch::nn;

Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

/// What the '*' of `pattern` stands for in `name`; "" for a pattern without one; nullopt if they do not fit.
std::optional<std::string> fill_of(const std::string& pattern, const std::string& name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string::npos) return pattern == name ? std::optional<std::string>("") : std::nullopt;
  const std::string prefix = pattern.substr(0, star);
  const std::string suffix = pattern.substr(star + 1);
  if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) || !name.ends_with(suffix)) return std::nullopt;
  return name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
}

std::string filled(std::string pattern, const std::string& fill) {
  const std::size_t star = pattern.find('*');
  return star == std::string::npos ? pattern : pattern.replace(star, 1, fill);
}

/// "GroupNorm".
std::string kind_of(const nn::Module& module) {
  std::string kind = module.name();
  if (const std::size_t colon = kind.rfind(':'); colon != std::string::npos) kind.erase(0, colon + 1);
  if (kind.ends_with("Impl")) kind.erase(kind.size() - 4);
  return kind;
}

/// Calls `use` with the holder of `module` if that is one of `Holders`; else returns false.
template <typename... Holders, typename Use>
bool use_as(const std::shared_ptr<nn::Module>& module, const Use& use) {
  const auto try_as = [&]<typename Holder>(std::type_identity<Holder>) {
    auto layer = std::dynamic_pointer_cast<typename Holder::ContainedType>(module);
    if (!layer) return false;
    Holder holder(std::move(layer));
    use(holder);
    return true;
  };
  return (try_as(std::type_identity<Holders>()) || ...);
}

/// Channels or features that enter and leave a layer.
struct Width {
  std::int64_t in = 0;
  std::int64_t out = 0;
};
Width width_of(const nn::Linear& layer) { return {layer->options.in_features(), layer->options.out_features()}; }
Width width_of(const nn::Conv2d& layer) { return {layer->options.in_channels(), layer->options.out_channels()}; }
Width width_of(const nn::BatchNorm2d& layer) { return {layer->options.num_features(), layer->options.num_features()}; }

using Runner = ddp::Announcing::Runner;

template <typename Holder>
Holder holder_of(nn::Module& part) {
  return Holder(std::dynamic_pointer_cast<typename Holder::ContainedType>(part.shared_from_this()));
}
template <typename Holder>
Runner run_by_outputs(const Holder&, const LayerSlices::Group& group) {
  return [slices = LayerSlices(group)](nn::Module& part, const at::Tensor& input) {
    auto layer = holder_of<Holder>(part);
    return slices.by_outputs(layer, input);
  };
}
template <typename Holder>
Runner run_by_inputs(const Holder&, const LayerSlices::Group& group) {
  return [slices = LayerSlices(group)](nn::Module& part, const at::Tensor& input) {
    auto layer = holder_of<Holder>(part);
    return slices.by_inputs(layer, input);
  };
}

/// First checks all pairs, then splits them.
class Splitter {
 public:
  Splitter(const nn::Module& model, ddp::Announcing& announcing, LayerSlices::Group group)
      : announcing_(announcing), group_(std::move(group)), slices_(group_) {
    for (const auto& named : model.named_modules("", /*include_self=*/false)) {
      layers_.push_back({named.key(), named.value()});
    }
  }

  Status add(const LayerPair& pair) {
    bool is_known = false;
    for (const Layer& layer : layers_) {
      const std::optional<std::string> fill = fill_of(pair.first, layer.name);
      if (!fill) continue;
      is_known = true;
      if (Status status = add(pair, *fill, layer); !status.ok()) return status;
    }
    return is_known ? Status() : invalid("the model has no layer '" + pair.first + "', the first one of a pair");
  }

  TensorSplit split(const std::vector<WholeReason>& reasons) {
    TensorSplit result;
    if (slices_.count() > 1) {
      for (const Task& task : tasks_) split(task);
    }
    result.split = slices_.split();
    for (const Layer& layer : layers_) {
      const bool is_split = slices_.count() > 1 && paired_.contains(layer.module.get());
      if (!is_split && !layer.module->parameters(/*recurse=*/false).empty())
        result.whole.push_back({layer.name, reason(layer, reasons)});
    }
    return result;
  }

 private:
  struct Layer {
    std::string name;
    std::shared_ptr<nn::Module> module;
  };
  enum class Place : std::uint8_t { first, between, second };
  struct Task {
    Place place;
    Layer layer;
  };

  [[nodiscard]] const Layer* find(const std::string& name) const {
    for (const Layer& layer : layers_) {
      if (layer.name == name) return &layer;
    }
    return nullptr;
  }

  Status add(const LayerPair& pair, const std::string& fill, const Layer& first) {
    const std::string second = filled(pair.second, fill);
    const Layer* last = find(second);
    if (last == nullptr) {
      alone_[first.name] = "the model has no layer '" + second + "', with which it would be a pair";
      return {};
    }
    std::vector<Task> tasks{{Place::first, first}};
    for (const std::string& pattern : pair.between) {
      const Layer* layer = find(filled(pattern, fill));
      if (layer == nullptr)
        return invalid("the model has no layer '" + filled(pattern, fill) + "', between " + first.name + " and " + second);
      tasks.push_back({Place::between, *layer});
    }
    tasks.push_back({Place::second, *last});
    const Task* before = nullptr;
    std::int64_t channels = 0;
    for (const Task& task : tasks) {
      Width width;
      if (Status status = check(task, width); !status.ok()) return status;
      const bool flattens = task.place == Place::second && task.layer.module->as<nn::Linear>() != nullptr;
      if (before != nullptr && (flattens ? width.in % channels != 0 : width.in != channels))
        return invalid(task.layer.name + " takes " + std::to_string(width.in) + " channels, and " + before->layer.name +
                       " before it in its pair returns " + std::to_string(channels));
      channels = width.out;
      before = &task;
    }
    tasks_.insert(tasks_.end(), tasks.begin(), tasks.end());
    return {};
  }

  Status check(const Task& task, Width& width) {
    const std::string& name = task.layer.name;
    const std::shared_ptr<nn::Module>& module = task.layer.module;
    bool is_known = false;
    try {
      const auto note = [&](const auto& layer) { width = width_of(layer); };
      switch (task.place) {
        case Place::first:
          is_known =
              use_as<nn::Conv2d, nn::Linear>(module, [&](auto& layer) { slices_.check_outputs(layer, name), note(layer); });
          break;
        case Place::between:
          is_known = use_as<nn::BatchNorm2d, nn::Conv2d>(
              module, [&](auto& layer) { slices_.check_channels(layer, name), note(layer); });
          break;
        case Place::second:
          is_known =
              use_as<nn::Conv2d, nn::Linear>(module, [&](auto& layer) { slices_.check_inputs(layer, name), note(layer); });
          break;
      }
    } catch (const c10::ValueError& error) {
      return invalid(torch::plain_message(error));
    }
    if (!is_known) {
      return invalid(name + " is a " + kind_of(*module) + ", which cannot be split over " + std::to_string(slices_.count()) +
                     " ranks: " +
                     (task.place == Place::between ? "between the layers of a pair BatchNorm2d and depthwise Conv2d can"
                                                   : "as a layer of a pair Conv2d and Linear can"));
    }
    if (!paired_.insert(module.get()).second) return invalid(name + " belongs to two pairs");
    return {};
  }

  void split(const Task& task) {
    const std::string& name = task.layer.name;
    const std::shared_ptr<nn::Module>& module = task.layer.module;
    switch (task.place) {
      case Place::first:
        use_as<nn::Conv2d, nn::Linear>(module, [&](auto& layer) {
          slices_.split_outputs(layer, name);
          announcing_.run_by(module, run_by_outputs(layer, group_));
        });
        break;
      case Place::between:
        use_as<nn::BatchNorm2d, nn::Conv2d>(module, [&](auto& layer) { slices_.split_channels(layer, name); });
        break;
      case Place::second:
        use_as<nn::Conv2d, nn::Linear>(module, [&](auto& layer) {
          slices_.split_inputs(layer, name);
          announcing_.run_by(module, run_by_inputs(layer, group_));
        });
        break;
    }
  }

  [[nodiscard]] std::string reason(const Layer& layer, const std::vector<WholeReason>& reasons) const {
    if (paired_.contains(layer.module.get())) return "one rank has all slices";
    if (const auto found = alone_.find(layer.name); found != alone_.end()) return found->second;
    for (const WholeReason& each : reasons) {
      if (fill_of(each.pattern, layer.name)) return each.reason;
    }
    return "no pair has it";
  }

  ddp::Announcing& announcing_;
  const LayerSlices::Group group_;
  LayerSlices slices_;
  std::vector<Layer> layers_;
  std::vector<Task> tasks_;
  std::set<const nn::Module*> paired_;
  std::map<std::string, std::string> alone_;  // first layers without a second one, and why
};

}  // namespace

Result<TensorSplit> split_pairs(nn::Module& model, ddp::Announcing& announcing, const LayerPairs& pairs,
                                const LayerSlices::Group& group) {
  Splitter splitter(model, announcing, group);
  for (const LayerPair& pair : pairs.pairs) {
    if (Status status = splitter.add(pair); !status.ok()) return status;
  }
  return splitter.split(pairs.whole);
}

}  // namespace shoal::parallel
