#include "torch_plugin/parallel/chain/chain.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "src/pipeline/manual_partition.h"
#include "src/pipeline/profile.h"
#include "torch_plugin/parallel/random/unit_seeds.h"
#include "torch_plugin/parallel/recompute/recompute.h"

namespace shoal::parallel {
namespace {

namespace nn = ::torch::nn;

Status bad_chain(const std::string& message) { return {StatusCode::invalid_argument, "chain: " + message}; }

/// "blocks.3.conv" as blocks, 3, conv.
std::vector<std::string> components(const std::string& name) {
  std::vector<std::string> all(1);
  for (const char character : name) {
    if (character == '.') {
      all.emplace_back();
    } else {
      all.back() += character;
    }
  }
  return all;
}

/// Units that run one after the other, some of which recompute in runs. Registers their modules under their names in the whole
/// model, inside of modules that hold nothing else: register_module() refuses names with dots.
class UnitSequence final : public Unit {
 public:
  /// `units`, the first of which is number `first` of the chain. `recomputed` lie in them, rising and apart.
  UnitSequence(std::span<const Part> units, int first, const std::vector<pipeline::UnitRun>& recomputed = {}) : first_(first) {
    for (const Part& unit : units) {
      for (const auto& [name, module] : unit.modules) place(name, module);
      steps_.push_back(unit.forward);
      names_.push_back(unit.name);
    }
    for (const pipeline::UnitRun& run : recomputed) {
      const auto begin = static_cast<std::size_t>(run.first - first);
      const auto count = static_cast<std::size_t>(run.end - run.first);
      runs_.emplace(begin, Run{std::make_shared<UnitSequence>(units.subspan(begin, count), run.first), count});
    }
  }

  at::Tensor forward(at::Tensor x) override {
    for (std::size_t i = 0; i < steps_.size();) {
      if (const auto run = runs_.find(i); run != runs_.end()) {
        x = recompute(run->second.units, x);
        i += run->second.count;
        continue;
      }
      UnitSeeds::begin_unit(first_ + static_cast<std::int64_t>(i));
      try {
        x = steps_[i](std::move(x));
      } catch (c10::Error& error) {
        error.add_context("unit '" + names_[i] + "'");
        throw;
      }
      ++i;
    }
    return x;
  }

  /// The runs have the modules of this sequence, and a training flag of their own.
  void train(bool on) override {
    nn::Module::train(on);
    for (const auto& [position, run] : runs_) run.units->train(on);
  }

 private:
  struct Run {
    std::shared_ptr<UnitSequence> units;
    std::size_t count;
  };

  void place(const std::string& name, const std::shared_ptr<nn::Module>& module) {
    const std::vector<std::string> path = components(name);
    nn::Module* parent = this;
    std::string reached;
    for (std::size_t i = 0; i + 1 < path.size(); ++i) {
      reached += path[i] + ".";
      std::shared_ptr<nn::Module>& holder = holders_[reached];
      if (!holder) holder = parent->register_module(path[i], std::make_shared<nn::Module>(path[i]));
      parent = holder.get();
    }
    parent->register_module(path.back(), module);
  }

  const int first_;
  std::map<std::string, std::shared_ptr<nn::Module>> holders_;
  std::vector<std::function<at::Tensor(at::Tensor)>> steps_;
  std::vector<std::string> names_;
  std::map<std::size_t, Run> runs_;  // by the position of its first unit
};

/// Each part by itself.
Status check_part(const Part& part, std::size_t position) {
  const std::string which = "part " + std::to_string(position) + (part.name.empty() ? "" : " ('" + part.name + "')");
  if (part.name.empty()) return bad_chain(which + " has no name");
  if (!part.forward) return bad_chain(which + " has no function 'forward'");
  for (const auto& [name, module] : part.modules) {
    if (!module) return bad_chain(which + ": its module '" + name + "' is null");
    const std::vector<std::string> path = components(name);
    if (std::ranges::find(path, "") != path.end()) {
      return bad_chain(which + ": '" + name + "' is no name of a module; it is empty or has an empty component");
    }
  }
  return {};
}

/// Names of modules in the whole model: each once, and none inside another one.
Status check_module_names(const std::vector<Part>& parts) {
  std::map<std::string, std::string> part_of;  // by the module's name
  for (const Part& part : parts) {
    for (const auto& [name, module] : part.modules) {
      if (const auto [other, added] = part_of.emplace(name, part.name); !added) {
        return bad_chain("part '" + other->second + "' and part '" + part.name + "' both have a module called '" + name + "'");
      }
    }
  }
  for (const auto& [name, part] : part_of) {
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      const auto outer = part_of.find(name.substr(0, dot));
      if (outer == part_of.end()) continue;
      return bad_chain("module '" + name + "' (part '" + part + "') is inside of module '" + outer->first + "' (part '" +
                       outer->second + "'); list only one of them");
    }
  }
  return {};
}

/// `tensors_of` each unit, parameters or buffers, belong to one unit only.
Status check_shared(const std::vector<Part>& units, const std::string& kind,
                    std::vector<NamedTensor> (Part::*tensors_of)() const) {
  struct Owner {
    const Part* unit;
    std::string name;
  };
  std::map<const c10::TensorImpl*, Owner> owners;
  for (const Part& unit : units) {
    for (const auto& [name, tensor] : (unit.*tensors_of)()) {
      const auto [owner, added] = owners.emplace(tensor.unsafeGetTensorImpl(), Owner{&unit, name});
      if (added || owner->second.unit == &unit) continue;
      return bad_chain("units '" + owner->second.unit->name + "' and '" + unit.name + "' share a " + kind + ": '" +
                       owner->second.name + "' is '" + name + "'; make one unit of them, or give each a " + kind +
                       " of its own");
    }
  }
  return {};
}

Status check_unit_names(const std::vector<Part>& units) {
  std::map<std::string, std::size_t> positions;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (const auto [other, added] = positions.emplace(units[i].name, i); !added) {
      return bad_chain("units " + std::to_string(other->second) + " and " + std::to_string(i) + " are both called '" +
                       units[i].name + "'");
    }
  }
  return {};
}

/// `first`, then `second`.
Part joined(Part first, Part second, const std::string& name) {
  first.name = name;
  std::ranges::move(second.modules, std::back_inserter(first.modules));
  first.forward = [one = std::move(first.forward), two = std::move(second.forward)](at::Tensor x) {
    return two(one(std::move(x)));
  };
  return first;
}

/// Parts without parameters join the unit before them, or the first one.
std::vector<Part> join_parts(std::vector<Part> parts) {
  std::vector<Part> units;
  bool complete = false;  // the last unit has parameters
  for (Part& part : parts) {
    const bool begins = !part.parameters().empty();
    if (units.empty() || (begins && complete)) {
      units.push_back(std::move(part));
    } else {
      const std::string name = begins ? part.name : units.back().name;
      units.back() = joined(std::move(units.back()), std::move(part), name);
    }
    complete = complete || begins;
  }
  return complete ? units : std::vector<Part>();
}

}  // namespace

Chain::Chain(std::vector<Part> units) : units_(std::move(units)) {
  for (const Part& unit : units_) names_.push_back(unit.name);
}

Result<Chain> Chain::of(std::vector<Part> parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (Status status = check_part(parts[i], i); !status.ok()) return status;
  }
  if (Status status = check_module_names(parts); !status.ok()) return status;
  const std::size_t count = parts.size();
  std::vector<Part> units = join_parts(std::move(parts));
  if (units.empty()) return bad_chain("none of its " + std::to_string(count) + " parts has a parameter");
  if (units.size() > pipeline::kMaxUnits) {
    return bad_chain("it has " + std::to_string(units.size()) + " units; at most " + std::to_string(pipeline::kMaxUnits) +
                     " are possible");
  }
  if (Status status = check_unit_names(units); !status.ok()) return status;
  if (Status status = check_shared(units, "parameter", &Part::parameters); !status.ok()) return status;
  if (Status status = check_shared(units, "buffer", &Part::buffers); !status.ok()) return status;
  return Chain(std::move(units));
}

Result<Chain> Chain::of_modules(const nn::Sequential& model) {
  std::vector<Part> parts;
  const auto names = model->named_children();
  for (const nn::AnyModule& module : *model) {
    const std::string& name = names[parts.size()].key();
    parts.push_back({name, {{name, module.ptr()}}, [module = nn::AnyModule(module)](at::Tensor x) mutable {
                       return module.forward(std::move(x));
                     }});
  }
  return of(std::move(parts));
}

Result<int> Chain::find(std::string_view name) const { return pipeline::find_unit(names_, name); }

Result<std::shared_ptr<Unit>> Chain::stage(int begin, int end, const std::vector<pipeline::UnitRun>& recomputed) const {
  if (begin < 0 || begin >= end || end > size()) {
    return bad_chain("no stage of units " + std::to_string(begin) + " to " + std::to_string(end - 1) +
                     "; a stage has one unit at least, and the chain has units 0 to " + std::to_string(size() - 1));
  }
  int behind = begin;
  for (const pipeline::UnitRun& run : recomputed) {
    if (run.first < behind || run.end <= run.first || run.end > end) {
      return bad_chain("the units " + std::to_string(run.first) + " to " + std::to_string(run.end - 1) +
                       " cannot recompute in a stage of the units " + std::to_string(begin) + " to " + std::to_string(end - 1) +
                       "; runs must lie in it, rise and not overlap");
    }
    behind = run.end;
  }
  const std::span<const Part> units(units_);
  return std::shared_ptr<Unit>(std::make_shared<UnitSequence>(
      units.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)), begin, recomputed));
}

}  // namespace shoal::parallel
