// Checkpoints of models that are spread over ranks: the manifest; going on with the same bits; other layouts; damage and
// failures.
#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "bench/train/optimizers.h"
#include "src/pipeline/layout.h"
#include "tests/torch/pipeline_ranks.h"
#include "torch_plugin/parallel/chain/chain.h"
#include "torch_plugin/parallel/checkpoint/stage_tensors.h"
#include "torch_plugin/parallel/checkpoint/tensor_file.h"
#include "torch_plugin/parallel/replicas/replica_reduction.h"
#include "torch_plugin/parallel/tensor/layer_pairs.h"

namespace shoal::parallel::pipeline_testing {
namespace {

namespace fs = std::filesystem;
using pipeline::Axis;
using pipeline::Layout;

const Manifest& good_manifest() {
  static const Manifest made{.about = R"({"step":3})",
                             .files = {{"stage0-slice0.pt", 0}, {"stage0-slice1.pt", 1}},
                             .tensors = {{"parameter/a", {4, 3}, "Float", 0, 0, 0, 2, 7},
                                         {"parameter/a", {4, 3}, "Float", 1, 0, 2, 2, 0xfedcba9876543210},
                                         {"buffer/count", {}, "Long", 0, kWhole, 0, 0, 1}}};
  return made;
}
void expect_bad(const Status& status, const std::vector<std::string>& facts) {
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << facts.back();
  EXPECT_TRUE(shoal::testing::mentions_all(status.message(), facts)) << status.message();
}

TEST(CheckpointManifest, TextGivesTheSameManifest) {
  const auto read = parse_manifest(to_json(good_manifest()), "m.json");
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->about, good_manifest().about);
  EXPECT_EQ(read->tensors, good_manifest().tensors);
  ASSERT_EQ(read->files.size(), 2);
  EXPECT_EQ(read->files[1].name, "stage0-slice1.pt");
  EXPECT_EQ(read->files[1].rank, 1);
  EXPECT_TRUE(check_complete(*read, "m.json").ok());
}

TEST(CheckpointManifest, BadFieldsAreNamed) {
  using Json = nlohmann::json;
  const auto refused = [](const std::string& pointer, const Json& value, const std::string& field) {
    Json changed = Json::parse(to_json(good_manifest()));
    changed[Json::json_pointer(pointer)] = value;
    expect_bad(parse_manifest(changed.dump(), "m.json").status(), {"m.json", field});
  };
  refused("/version", 2, "version");
  refused("/about", "3", "about");
  refused("/files", 3, "files");
  for (const char* name : {"", "..", "../stage0.pt", "/etc/passwd", ".hidden", "a\nb"})
    refused("/files/0/name", name, "file 0");
  refused("/files/0/name", "stage0-slice1.pt", "stage0-slice1.pt");
  refused("/files/1/rank", -1, "rank");
  refused("/tensors/1", 1, "tensor 1");
  for (const Json& shape : {Json(4), Json{4, -3}, Json{1 << 30, 1 << 30}, Json{4, 3.5}, Json(std::vector<int>(17, 1))})
    refused("/tensors/0/shape", shape, "shape");
  for (const Json& file : {Json(2), Json(-1), Json("stage0-slice0.pt"), Json(std::uint64_t{1} << 63)})
    refused("/tensors/0/file", file, "file");
  refused("/tensors/0/dimension", 2, "dimension");
  refused("/tensors/2/dimension", 0, "dimension");
  refused("/tensors/0/offset", 5, "offset");
  for (const int length : {0, 5, -1}) refused("/tensors/0/length", length, "length");
  for (const char* checksum : {"7", "000000000000000g", "-000000000000007"})
    refused("/tensors/0/checksum", checksum, "checksum");
  expect_bad(parse_manifest("{\"version\"", "m.json").status(), {"m.json", "version"});
  expect_bad(parse_manifest("[]", "m.json").status(), {"m.json"});
}

TEST(CheckpointManifest, SlicesMakeEachTensorOnce) {
  const auto refused = [](const auto& change, const std::vector<std::string>& facts) {
    Manifest changed = good_manifest();
    change(changed.tensors);
    expect_bad(check_complete(changed, "m.json"), facts);
  };
  using All = std::vector<StoredTensor>;
  refused([](All& all) { all[1].offset = 1; }, {"parameter/a", "stage0-slice0.pt", "rank 0", "stage0-slice1.pt", "rank 1"});
  refused([](All& all) { all[1].dimension = kWhole; }, {"parameter/a", "stage0-slice0.pt", "stage0-slice1.pt", "rank 1"});
  refused([](All& all) { all[1].shape[1] = 5; }, {"parameter/a", "shape"});
  refused([](All& all) { all[1].type = "Long"; }, {"parameter/a", "type"});
  refused([](All& all) { all.erase(all.begin()); }, {"parameter/a", "0", "missing"});
  refused([](All& all) { all.erase(all.begin() + 1); }, {"parameter/a", "2", "missing"});
  refused([](All& all) { all.push_back(all.back()); }, {"buffer/count", "stage0-slice0.pt", "rank 0"});
}

/// Forked ranks with a folder that is deleted afterwards.
void run_ranks_with_folder(int ranks, const std::function<void(Communicator&, const std::string&)>& body) {
  const Folder folder;
  run_ranks(ranks, [&](Communicator& all) { body(all, folder.path() + "/saved"); });
}

constexpr int kUnits = 4;
constexpr int kCheckpointBatch = 4;

/// A rank that trains its units with Adam. Replicas are neighbours, and their gradients are averaged.
struct TrainingRank {
  TrainingRank(Communicator& communicator, int partitions, bool drops)
      : all(communicator),
        layout(*Layout::create(all.size(), partitions, 1, true, *pipeline::parse_placement("spread"))),
        position(layout.position(all.rank())),
        chunk(make_units(position.stage, partitions, drops)),
        pipeline(*all.group(layout.group(all.rank(), Axis::pipeline))),
        reduction(make_reduction()),
        model({chunk}, *pipeline, {.schedule = pipeline::ScheduleKind::one_f_one_b, .microbatches = 2}, reduction) {
    train::TrainOptions options;
    options.optimizer = "adam";
    optimizer = optimizers.maker(options)(chunk->parameters());
  }

  static std::shared_ptr<Unit> make_units(int stage, int stages, bool drops) {
    std::vector<Part> parts;
    for (int unit = 0; unit < kUnits; ++unit) {
      const std::string number = std::to_string(unit);
      parts.push_back(make_part("units." + number, make_stage(unit, kUnits)));
      if (drops && unit == 2)  // a part of unit 2
        parts.push_back({"dropout", {}, [](const at::Tensor& x) { return at::dropout(x, 0.5, true); }});
    }
    const int units = kUnits / stages;
    return *Chain::of(parts)->stage(stage * units, (stage + 1) * units);
  }
  std::shared_ptr<ReplicaReduction> make_reduction() {
    if (layout.size(Axis::replica) == 1) return nullptr;
    return std::make_shared<ReplicaReduction>(std::vector{chunk}, make_group(all, layout.group(all.rank(), Axis::replica)));
  }

  void compute_gradients(int seed) {
    if (reduction) {
      reduction->clear_gradients();
    } else {
      chunk->zero_grad();
    }
    const bool loads = position.stage == 0;
    (void)model.step(loads ? make_images(kCheckpointBatch, seed) : at::Tensor(),
                     loads ? make_targets(kCheckpointBatch, seed) : at::Tensor(), cross_entropy);
  }
  void make_step(int step) {
    compute_gradients(2 * step + position.replica);  // other images for each replica
    optimizer->step();
  }

  [[nodiscard]] std::vector<ModelTensor> tensors() const {
    std::vector<ModelTensor> both = stage_tensors({chunk});
    for (ModelTensor& each : optimizer_tensors(optimizers.state(*chunk), both)) both.push_back(std::move(each));
    return both;
  }
  void save(const std::string& root) const {
    SaveRequest request{
        .root = root, .tag = "step", .about = R"({"step":3})", .file = "stage" + std::to_string(position.stage) + ".pt"};
    if (position.replica == 0) request.tensors = tensors();
    const auto saved = save_checkpoint(all, request);
    check(saved.ok(), saved.status().to_string());
  }
  void load(const std::string& root, bool with_generator) {
    const auto stored = open_checkpoint(all, root);
    check(stored.ok(), stored.status().to_string());
    check(stored->manifest.about == R"({"step":3})", "what the program says of its training");
    std::vector<ModelTensor> wanted = wanted_tensors(*stored, stage_tensors({chunk}));
    if (with_generator) wanted.push_back(generator_of(all.rank()));
    const auto found = load_tensors(all, *stored, wanted);
    check(found.ok(), found.status().to_string());
    optimizers.restore(*chunk, restore_stages(wanted, *found));
    if (with_generator) set_generator(found->back());
  }

  void take(const WholeTensors& whole) {
    const std::vector<ModelTensor> wanted = wanted_tensors(whole, stage_tensors({chunk}));
    const auto found = take_tensors(all, whole, "full.pt", wanted);
    check(found.ok(), found.status().to_string());
    optimizers.restore(*chunk, restore_stages(wanted, *found));
  }

  Communicator& all;
  const Layout layout;
  const pipeline::Position position;
  std::shared_ptr<Unit> chunk;
  std::unique_ptr<Communicator> pipeline;
  std::shared_ptr<ReplicaReduction> reduction;
  PipelineModel model;
  train::Optimizers optimizers;
  std::unique_ptr<::torch::optim::Optimizer> optimizer;
};

/// All tensors of the checkpoint but generators, as one process reads them.
WholeTensors read_whole(Communicator& all, const std::string& root) {
  const auto stored = open_checkpoint(all, root);
  check(stored.ok(), stored.status().to_string());
  std::set<std::string> names;
  for (const StoredTensor& each : stored->manifest.tensors) {
    if (!each.name.starts_with("generator/")) names.insert(each.name);
  }
  std::vector<ModelTensor> wanted;
  for (const std::string& name : names) wanted.push_back({name, {}, {}});
  const auto found = read_tensors(*stored, wanted);
  check(found.ok(), found.status().to_string());
  WholeTensors whole;
  for (std::size_t i = 0; i < wanted.size(); ++i) whole[wanted[i].name] = (*found)[i];
  return whole;
}

void check_same_tensors(const std::vector<ModelTensor>& found, const std::vector<ModelTensor>& wanted) {
  check(found.size() == wanted.size(), "as many tensors");
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    check(found[i].name == wanted[i].name, "the name of " + wanted[i].name);
    if (wanted[i].name.starts_with("buffer/")) continue;  // each replica has its own, and continues with those of replica 0
    check_equal(found[i].value, wanted[i].value, wanted[i].name);
  }
}

TEST(Checkpoint, SameLayoutGoesOnWithTheSameBits) {
  run_ranks_with_folder(4, [](Communicator& all, const std::string& root) {
    TrainingRank whole(all, 2, /*drops=*/true);
    for (int step = 0; step < 3; ++step) whole.make_step(step);
    whole.save(root);
    for (int step = 3; step < 6; ++step) whole.make_step(step);
    TrainingRank resumed(all, 2, /*drops=*/true);
    resumed.load(root, /*with_generator=*/true);
    for (int step = 3; step < 6; ++step) resumed.make_step(step);
    check_same_tensors(resumed.tensors(), whole.tensors());
    TrainingRank other_numbers(all, 2, /*drops=*/true);
    other_numbers.load(root, /*with_generator=*/false);
    for (int step = 3; step < 6; ++step) other_numbers.make_step(step);
    check(!::torch::equal(other_numbers.chunk->parameters()[0], whole.chunk->parameters()[0]), "dropout draws other numbers");
    const auto file = from_file([&] {
      std::ifstream opened(root + "/step/stage0.pt", std::ios::binary);
      return std::vector<char>(std::istreambuf_iterator<char>(opened), {});
    }());
    check(file.front().first == "parameter/units.0.convolution.weight", "names are those of the unsplit model");
  });
}

TEST(Checkpoint, OtherLayoutsHaveTheSameGradients) {
  run_ranks_with_folder(4, [](Communicator& all, const std::string& root) {
    TrainingRank two(all, 2, /*drops=*/false);
    for (int step = 0; step < 3; ++step) two.make_step(step);
    two.save(root);
    constexpr int kSeed = 50;  // the same images for all replicas, so that averages are exact
    two.load(root, false);     // buffers of replica 0
    two.compute_gradients(kSeed);
    const WholeTensors whole = read_whole(all, root);
    for (const int partitions : {1, 2, 4}) {
      TrainingRank other(all, partitions, /*drops=*/false);
      other.load(root, false);
      other.compute_gradients(kSeed);
      const auto wanted = two.chunk->named_parameters();
      int compared = 0;
      for (const auto& named : other.chunk->named_parameters()) {
        const at::Tensor* const parameter = wanted.find(named.key());
        if (parameter == nullptr) continue;
        check_equal(named.value().grad(), parameter->grad(), "gradient of " + named.key());
        ++compared;
      }
      check(compared > 0, "this rank has units of both layouts");
      TrainingRank from_whole(all, partitions, /*drops=*/false);
      from_whole.take(whole);
      check_same_tensors(from_whole.tensors(), other.tensors());
      from_whole.compute_gradients(kSeed);
      for (const auto& named : from_whole.chunk->named_parameters())
        check_equal(named.value().grad(), other.chunk->named_parameters()[named.key()].grad(), "gradient of " + named.key());
    }
  });
}

/// A convolution pair with a norm, and a classifier.
struct PairUnit final : Unit, ddp::Announcing {
  explicit PairUnit(std::uint64_t seed) {
    ::torch::manual_seed(seed);
    first = register_module("first", nn::Conv2d(3, 8, 3));
    norm = register_module("norm", nn::BatchNorm2d(8));
    second = register_module("second", nn::Conv2d(8, 4, 3));
    scores = register_module("scores", nn::Linear(4, kClasses));
  }
  at::Tensor forward(at::Tensor images) override {
    return run(scores, run(second, run(norm, run(first, images)).relu()).mean({2, 3}));
  }
  static LayerPairs pairs() { return {.pairs = {{"first", {"norm"}, "second"}}, .whole = {{"scores", "it is small"}}}; }
  nn::Conv2d first{nullptr}, second{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::Linear scores{nullptr};
};

/// A PairUnit with momentum, whole or in slices.
struct PairRank {
  PairRank(Communicator& communicator, std::uint64_t seed, bool slices)
      : all(communicator), unit(std::make_shared<PairUnit>(seed)) {
    if (slices) {
      index = all.rank();
      split = split_pairs(*unit, *unit, PairUnit::pairs(), make_group(all, {0, 1}))->split;
    }
    optimizer = optimizers.maker({})(unit->parameters());
  }
  [[nodiscard]] std::vector<ModelTensor> stage() const { return stage_tensors({unit}, split, index); }
  void compute_gradients(int seed) {
    unit->zero_grad();
    cross_entropy(unit->forward(make_images(4, seed)), make_targets(4, seed)).backward();
  }
  void save(const std::string& root) const {
    std::vector<ModelTensor> tensors = stage();
    for (ModelTensor& each : optimizer_tensors(optimizers.state(*unit), tensors)) tensors.push_back(std::move(each));
    if (all.rank() > 0) std::erase_if(tensors, [](const ModelTensor& each) { return each.slice.dimension == kWhole; });
    const auto saved = save_checkpoint(
        all,
        {.root = root, .tag = "step", .file = "slice" + std::to_string(all.rank()) + ".pt", .tensors = std::move(tensors)});
    check(saved.ok(), saved.status().to_string());
  }
  void load(const std::string& root) {
    const auto stored = open_checkpoint(all, root);
    check(stored.ok(), stored.status().to_string());
    const std::vector<ModelTensor> wanted = wanted_tensors(*stored, stage());
    const auto found = load_tensors(all, *stored, wanted);
    check(found.ok(), found.status().to_string());
    optimizers.restore(*unit, restore_stages(wanted, *found));
  }
  void take(const WholeTensors& whole) {
    const std::vector<ModelTensor> wanted = wanted_tensors(whole, stage());
    const auto found = take_tensors(all, whole, "full.pt", wanted);
    check(found.ok(), found.status().to_string());
    optimizers.restore(*unit, restore_stages(wanted, *found));
  }
  /// This rank's part of a tensor of the whole model.
  [[nodiscard]] at::Tensor part(const std::string& name, const at::Tensor& tensor) const {
    const auto found = std::ranges::find(split, name, &SplitTensor::name);
    if (found == split.end()) return tensor;
    const std::int64_t size = found->whole_size / 2;
    return tensor.narrow(found->dimension, index * size, size);
  }

  Communicator& all;
  std::shared_ptr<PairUnit> unit;
  std::vector<SplitTensor> split;
  int index = 0;
  train::Optimizers optimizers;
  std::unique_ptr<::torch::optim::Optimizer> optimizer;
};

TEST(Checkpoint, SlicesAndWholeLayersReadEachOther) {
  run_ranks_with_folder(2, [](Communicator& all, const std::string& root) {
    PairRank whole(all, 1, /*slices=*/false);
    for (int step = 0; step < 2; ++step) {
      whole.compute_gradients(step);
      whole.optimizer->step();
    }
    whole.save(root);
    PairRank sliced(all, 2, /*slices=*/true);
    check(sliced.split.size() == 7,
          "convolutions and norm are split");  // weights and biases, but that of `second`, and statistics
    sliced.load(root);
    sliced.save(root + "-slices");
    PairRank from_whole(all, 4, /*slices=*/true);
    from_whole.take(read_whole(all, root));
    check(from_whole.optimizers.state(*from_whole.unit).size() == sliced.optimizers.state(*sliced.unit).size(), "momentum");
    for (const auto& [name, tensor] : from_whole.optimizers.state(*from_whole.unit))
      check_equal(tensor, sliced.optimizers.state(*sliced.unit).at(name), name);
    for (std::size_t i = 0; i < sliced.stage().size(); ++i)
      check_equal(from_whole.stage()[i].value, sliced.stage()[i].value, sliced.stage()[i].name);
    PairRank again(all, 3, /*slices=*/false);
    again.load(root + "-slices");
    const auto wanted = whole.unit->named_parameters();
    for (const auto& named : again.unit->named_parameters()) check_equal(named.value(), wanted[named.key()], named.key());
    for (const auto& named : again.unit->named_buffers())
      check_equal(named.value(), whole.unit->named_buffers()[named.key()], named.key());
    const auto momentum = whole.optimizers.state(*whole.unit);
    check(!momentum.empty() && again.optimizers.state(*again.unit).size() == momentum.size(), "there is momentum");
    for (const auto& [name, tensor] : again.optimizers.state(*again.unit)) check_equal(tensor, momentum.at(name), name);
    whole.compute_gradients(9);
    sliced.compute_gradients(9);
    for (const auto& named : sliced.unit->named_parameters()) {
      const at::Tensor gradient = sliced.part(named.key(), wanted[named.key()].grad());
      check(::torch::allclose(named.value().grad(), gradient, 1e-5, 1e-6), "the gradient of " + named.key());
    }
  });
}

/// A tensor for each rank, "parameter/r" with the value r + 0.25.
SaveRequest small_request(const Communicator& all, const std::string& root, const std::string& tag, std::int64_t size = 64) {
  const std::string rank = std::to_string(all.rank());
  return {.root = root,
          .tag = tag,
          .file = "stage" + rank + ".pt",
          .tensors = {{"parameter/" + rank, at::full({size}, all.rank() + 0.25F), {}}}};
}
void check_fails(const Status& status, StatusCode code, const std::vector<std::string>& facts) {
  check(status.code() == code && shoal::testing::mentions_all(status.message(), facts),
        "\"" + facts.front() + "\" and more in: " + status.to_string());
}

TEST(Checkpoint, DamageIsNamedOnAllRanks) {
  run_ranks_with_folder(2, [](Communicator& all, const std::string& root) {
    const SaveRequest request = small_request(all, root, "step");
    check(save_checkpoint(all, request).ok(), "saved");
    const auto stored = open_checkpoint(all, root + "/step");
    check(stored.ok(), stored.status().to_string());
    check(load_tensors(all, *stored, request.tensors).ok(), "loaded");
    const auto fails = [&](std::vector<ModelTensor> wanted, StatusCode code, const std::vector<std::string>& facts) {
      check_fails(load_tensors(all, *stored, wanted).status(), code, facts);
    };
    const std::vector<ModelTensor> first{{"parameter/0", at::zeros({64}), {}}};
    fails(first, StatusCode::invalid_argument, {"'parameter/1'", "stage1.pt", "rank 1"});  // no rank wants it
    fails({{"parameter/2", at::zeros({64}), {}}}, StatusCode::invalid_argument, {"'parameter/2'", "manifest.json"});
    fails({{"parameter/1", at::zeros({65}), {}}}, StatusCode::invalid_argument, {"'parameter/1'", "stage1.pt", "64", "65"});
    fails({{"parameter/1", at::zeros({64}, at::kInt), {}}}, StatusCode::invalid_argument, {"'parameter/1'", "Float", "Int"});
    const std::string file = root + "/step/stage1.pt";
    if (all.rank() == 0) {
      std::fstream opened(file, std::ios::binary | std::ios::in | std::ios::out);
      const std::string bytes(std::istreambuf_iterator<char>(opened), {});
      std::array<char, sizeof(float)> value{};
      std::memcpy(value.data(), request.tensors[0].value.add(1).const_data_ptr(), value.size());
      opened.seekp(
          static_cast<std::streamoff>(bytes.find(std::string(value.data(), value.size()) + std::string(value.data(), 4))));
      opened.put('!');
    }
    check(all.barrier().ok(), "barrier");
    fails(request.tensors, StatusCode::invalid_argument, {"stage1.pt", "'parameter/1'", "rank 1"});
    if (all.rank() == 0) fs::resize_file(file, 100);
    check(all.barrier().ok(), "barrier");
    fails(request.tensors, StatusCode::invalid_argument, {"stage1.pt", "rank 1"});
    if (all.rank() == 0) fs::remove(file);
    check(all.barrier().ok(), "barrier");
    fails(request.tensors, StatusCode::not_found, {"stage1.pt", "rank 1"});
    check_fails(open_checkpoint(all, root + "/none").status(), StatusCode::not_found, {"/none", "newest"});
    if (all.rank() == 0) std::ofstream(root + "/newest") << "../step\n";
    check_fails(open_checkpoint(all, root).status(), StatusCode::invalid_argument, {"newest"});
  });
}

TEST(Checkpoint, WholeTensorsOfAnotherModelAreNamed) {
  run_ranks(2, [](Communicator& all) {
    const WholeTensors whole{{"parameter/0", at::zeros({4, 2})}, {"parameter/1", at::zeros({3})}};
    const std::string own = "parameter/" + std::to_string(all.rank());
    const auto take = [&](const std::string& name, const at::Tensor& value, const Slice& slice) {
      return take_tensors(all, whole, "full.pt", {{name, value, slice}});
    };
    const auto taken = take(own, all.rank() == 0 ? at::ones({2, 2}) : at::ones({3}),
                            all.rank() == 0 ? Slice{.dimension = 0, .offset = 2, .whole_size = 4} : Slice{});
    check(taken.ok() && taken->size() == 1, taken.status().to_string());
    check_equal(taken->front(), all.rank() == 0 ? at::zeros({2, 2}) : at::zeros({3}), own);
    const auto fails = [&](const Result<std::vector<at::Tensor>>& result, const std::vector<std::string>& facts) {
      check_fails(result.status(), StatusCode::invalid_argument, facts);
    };
    fails(take("parameter/0", at::ones({4, 2}), {}), {"full.pt", "'parameter/1'"});  // no rank wants it
    fails(take("parameter/" + std::to_string(2 * all.rank()), at::ones({4, 2}), {}), {"full.pt", "'parameter/2'", "rank 1"});
    fails(take(own, at::ones({4, 2}), {}), {"full.pt", "'parameter/1'", "3", "4, 2", "rank 1"});
    fails(take(own, all.rank() == 0 ? at::ones({4, 2}, at::kInt) : at::ones({3}), {}), {"'parameter/0'", "Float", "Int"});
  });
}

TEST(Checkpoint, FullDiskLeavesTheOldOne) {
  run_ranks_with_folder(2, [](Communicator& all, const std::string& root) {
    SaveRequest request = small_request(all, root, "step");
    check(save_checkpoint(all, request).ok(), "saved");
    constexpr std::int64_t kElements = 1 << 16;
    if (all.rank() == 1) {
      const rlimit limit{.rlim_cur = kElements, .rlim_max = RLIM_INFINITY};  // bytes of a file
      check(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
      (void)std::signal(SIGXFSZ, SIG_IGN);
    }
    request = small_request(all, root, "step", kElements);
    check_fails(save_checkpoint(all, request).status(), StatusCode::system_error, {"stage1.pt", "rank 1"});
    check(!fs::exists(root + "/step-2"), "the folder has gone");
    check(open_checkpoint(all, root)->folder == root + "/step", "newest is the old one");
    request.tensors.clear();  // of rank 0 alone
    if (all.rank() == 0) request = small_request(all, root, "step", kElements);
    request.removes_previous = true;
    const auto saved = save_checkpoint(all, request);
    check(saved.ok() && *saved == root + "/step-2", saved.status().to_string());
    check(!fs::exists(root + "/step") && fs::exists(root + "/step-2/manifest.json"), "the new one replaces the old one");
    check(all.barrier().ok(), "barrier");  // the next one makes the folder "step" again
    request.finish = [](const StoredCheckpoint&) { return Status(StatusCode::system_error, "no room"); };
    check_fails(save_checkpoint(all, request).status(), StatusCode::system_error, {"no room"});
    check(fs::exists(root + "/step-2/manifest.json") && !fs::exists(root + "/step"), "a failed save removes nothing else");
    check_fails(save_checkpoint(all, small_request(all, root + "/no/such", "step")).status(), StatusCode::system_error,
                {"/no/such"});
    check_fails(save_checkpoint(all, small_request(all, root, "..")).status(), StatusCode::invalid_argument, {".."});
  });
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
