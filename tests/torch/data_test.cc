// The readers of image files, the augmentation and the loader.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "bench/train/data/augment.h"
#include "bench/train/data/cifar10.h"
#include "bench/train/data/fashion_mnist.h"
#include "bench/train/data/loader.h"
#include "bench/train/data/locate.h"
#include "bench/train/data/official.h"
#include "bench/train/data/sampler.h"
#include "bench/train/data/synthetic.h"
#include "tests/facts.h"

namespace shoal::data {
namespace {

namespace fs = std::filesystem;
using testing::mentions;

class Folder : public ::testing::Test {
 protected:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "shoal-data-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() override { fs::remove_all(path_); }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ifstream file(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  template <typename... Facts>
  static void expect_error(const Result<Dataset>& result, StatusCode code, const Facts&... facts) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), code) << result.status().to_string();
    EXPECT_TRUE(mentions(result.status().message(), facts...)) << result.status().message();
  }

  fs::path path_;
};

using Cifar10 = Folder;
using FashionMnist = Folder;
using Locate = Folder;
using Official = Folder;

TEST_F(Cifar10, ReaderReturnsFilesInOrder) {
  std::string first(3073, '\0');
  first[0] = 7;
  first[1] = static_cast<char>(255);                // red, row 0, column 0
  first[1 + 1024 + 33] = 11;                        // green, row 1, column 1
  first[1 + 2048 + 1023] = static_cast<char>(200);  // blue, last
  std::string second(3073, '\1');
  write("data_batch_1.bin", first);
  write("data_batch_2.bin", second + second);
  write("test_batch.bin", second);
  const Result<Dataset> train = read_cifar10(path_.string(), Split::train);
  ASSERT_TRUE(train.ok()) << train.status().to_string();
  EXPECT_EQ(train->labels, (std::vector<std::uint8_t>{7, 1, 1}));
  EXPECT_EQ(train->pixels.size(), 3U * 3072);
  EXPECT_EQ(train->pixels[0], 255);
  EXPECT_EQ(train->pixels[1024 + 33], 11);
  EXPECT_EQ(train->pixels[3071], 200);
  EXPECT_EQ(read_cifar10(path_.string(), Split::test)->size(), 1U);
}

TEST_F(Cifar10, ReaderRefusesBadFiles) {
  expect_error(read_cifar10(path_.string(), Split::test), StatusCode::not_found, "test_batch.bin");
  write("test_batch.bin", std::string(3072, '\0'));
  expect_error(read_cifar10(path_.string(), Split::test), StatusCode::invalid_argument, "test_batch.bin", "3072", "3073");
  write("test_batch.bin", "");
  expect_error(read_cifar10(path_.string(), Split::test), StatusCode::invalid_argument, "0 bytes");
  write("test_batch.bin", std::string(3073, '\0') + std::string(3073, '\x0a'));
  expect_error(read_cifar10(path_.string(), Split::test), StatusCode::invalid_argument, "test_batch.bin", "3073", "10");
  write("data_batch_1.bin", std::string(3073, '\0'));
  write("data_batch_2.bin", std::string(100, '\0'));
  expect_error(read_cifar10(path_.string(), Split::train), StatusCode::invalid_argument, "data_batch_2.bin");
}

TEST_F(FashionMnist, ReaderReturnsWrittenData) {
  const Dataset made = make_synthetic(25, 1, 28, 3);
  ASSERT_TRUE(write_fashion_mnist(made, path_.string(), Split::train).ok());
  const Result<Dataset> read = read_fashion_mnist(path_.string(), Split::train);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->labels, made.labels);
  EXPECT_EQ(read->pixels, made.pixels);
  EXPECT_EQ(read->channels, 1);
}

TEST_F(FashionMnist, ReaderRefusesBadFiles) {
  const std::string folder = path_.string();
  expect_error(read_fashion_mnist(folder, Split::test), StatusCode::not_found, "t10k-images");
  ASSERT_TRUE(write_fashion_mnist(make_synthetic(10, 1, 28, 3), folder, Split::test).ok());
  const std::string images = "t10k-images-idx3-ubyte";
  const std::string good = content(images + ".gz");

  write(images + ".gz", good.substr(0, good.size() / 2));  // gzip ends early
  expect_error(read_fashion_mnist(folder, Split::test), StatusCode::system_error, images + ".gz");
  std::string flipped = good;
  flipped[good.size() / 2] = static_cast<char>(flipped[good.size() / 2] ^ 0x55);
  write(images + ".gz", flipped);
  ASSERT_FALSE(read_fashion_mnist(folder, Split::test).ok());
  write(images + ".gz", good.substr(0, 5));
  ASSERT_FALSE(read_fashion_mnist(folder, Split::test).ok());
  fs::remove(path_ / (images + ".gz"));

  const std::string header{'\0', '\0', '\x08', '\x03', '\0', '\0', '\0', '\x0a',
                           '\0', '\0', '\0',   '\x1c', '\0', '\0', '\0', '\x1c'};
  write(images, header + std::string(10 * 784, '\5'));  // plain files are read too
  EXPECT_TRUE(read_fashion_mnist(folder, Split::test).ok());
  write(images, header + std::string(10 * 784 - 1, '\5'));
  expect_error(read_fashion_mnist(folder, Split::test), StatusCode::invalid_argument, "7855", "7856");
  write(images, header.substr(0, 9));
  expect_error(read_fashion_mnist(folder, Split::test), StatusCode::invalid_argument, "9 bytes", "IDX");
  std::string wrong_magic = header;
  wrong_magic[3] = 1;
  write(images, wrong_magic + std::string(10 * 784, '\5'));
  expect_error(read_fashion_mnist(folder, Split::test), StatusCode::invalid_argument, "magic");
  std::string huge = header;
  huge[4] = '\x7f';
  write(images, huge);
  expect_error(read_fashion_mnist(folder, Split::test), StatusCode::invalid_argument, "dimension 0");
}

TEST_F(FashionMnist, ReaderRefusesBadLabels) {
  const std::string folder = path_.string();
  ASSERT_TRUE(write_fashion_mnist(make_synthetic(10, 1, 28, 3), folder, Split::train).ok());
  const std::string labels = "train-labels-idx1-ubyte";
  fs::remove(path_ / (labels + ".gz"));
  const std::string header{'\0', '\0', '\x08', '\x01', '\0', '\0', '\0'};
  write(labels, header + '\x09' + std::string(9, '\1'));
  expect_error(read_fashion_mnist(folder, Split::train), StatusCode::invalid_argument, labels, "9", "10");
  write(labels, header + '\x0a' + std::string(9, '\1') + '\x0a');
  expect_error(read_fashion_mnist(folder, Split::train), StatusCode::invalid_argument, "label 9", "10");
}

TEST_F(Official, Md5MatchesRfc1321) {
  write("empty", "");
  write("digest", "message digest");
  write("long", std::string(200'000, 'a'));
  EXPECT_EQ(md5_of_file((path_ / "empty").string()).value(), "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(md5_of_file((path_ / "digest").string()).value(), "f96b697d7cb7938d525a2f31aaf161d0");
  EXPECT_EQ(md5_of_file((path_ / "long").string()).value(), "561b1994f6baacd6e5eaf4baaa12849f");
  EXPECT_EQ(md5_of_file((path_ / "missing").string()).status().code(), StatusCode::not_found);
}

TEST_F(Official, OtherAndDamagedFilesAreDetected) {
  const std::vector<OfficialFile> files{{"a", 14, "f96b697d7cb7938d525a2f31aaf161d0"},
                                        {"b", 0, "d41d8cd98f00b204e9800998ecf8427e"}};
  const auto check = [&] { return holds_official(path_.string(), files); };
  write("a", "message digest");
  EXPECT_FALSE(check().value()) << "b is missing";
  write("b", "");
  EXPECT_TRUE(check().value());
  write("b", "other");
  EXPECT_FALSE(check().value()) << "b has another size";
  write("a", "message digesT");
  EXPECT_EQ(check().status().code(), StatusCode::invalid_argument);
  EXPECT_TRUE(mentions(check().status().message(), "MD5", files[0].md5)) << check().status().message();
}

TEST_F(Official, DamageIsDetectedBeforeTraining) {
  const Dataset images = make_synthetic(20, 1, 28, 1);
  ASSERT_TRUE(write_fashion_mnist(images, path_.string(), Split::train).ok());
  ASSERT_TRUE(write_fashion_mnist(images, path_.string(), Split::test).ok());
  const Result<Located> others = locate("fashion_mnist", path_.string());
  ASSERT_TRUE(others.ok()) << others.status().to_string();
  EXPECT_FALSE(mentions(others->origin, "MD5")) << "these are not the official files: " << others->origin;
  EXPECT_EQ(others->kind, Kind::other);
  // gzip ignores trailing bytes, so the reader would accept the file.
  std::string labels = content("t10k-labels-idx1-ubyte.gz");
  labels.resize(official_fashion_mnist()[3].bytes);
  write("t10k-labels-idx1-ubyte.gz", labels);
  const Result<Located> damaged = locate("fashion_mnist", path_.string());
  EXPECT_EQ(damaged.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(damaged.status().message().find("MD5"), std::string::npos) << damaged.status().to_string();
}

TEST_F(Locate, UserFolderMustHoldData) {
  const Result<Located> none = locate("cifar10", path_.string());
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), StatusCode::not_found);
  EXPECT_NE(none.status().message().find(path_.string()), std::string::npos);
  fs::create_directory(path_ / "cifar-10-batches-bin");
  write("cifar-10-batches-bin/data_batch_1.bin", std::string(3073, '\2'));
  write("cifar-10-batches-bin/test_batch.bin", std::string(2 * 3073, '\3'));
  const Result<Located> found = locate("cifar10", path_.string());
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(found->train.size(), 1U);
  EXPECT_EQ(found->test.size(), 2U);
  EXPECT_EQ(found->kind, Kind::subset);
  EXPECT_TRUE(mentions(describe(*found), "CIFAR-10", "subset", "1", "50,000", "2", "10,000")) << describe(*found);
  EXPECT_EQ(locate("imagenet", std::nullopt).status().code(), StatusCode::invalid_argument);
}

TEST(Located, DescriptionNamesDataAndCounts) {
  Located whole;
  whole.train.name = "cifar10";
  whole.kind = Kind::official;
  whole.train.labels.resize(50'000);
  whole.test.labels.resize(10'000);
  EXPECT_TRUE(mentions(describe(whole), "CIFAR-10", "official", "50,000", "10,000")) << describe(whole);
  EXPECT_STREQ(name_of(whole.kind), "official");
}

TEST_F(Locate, SyntheticDataIsNamedAndMadeOnce) {
  setenv("XDG_CACHE_HOME", path_.c_str(), 1);
  const Result<Located> made = locate("synthetic", std::nullopt);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  EXPECT_EQ(made->train.name, "synthetic");
  EXPECT_EQ(made->kind, Kind::generated);
  EXPECT_TRUE(mentions(describe(*made), "generated", "5,000", "1,000")) << describe(*made);
  const fs::path file = path_ / "shoal" / "data" / "synthetic-cifar10" / "data_batch_1.bin";
  ASSERT_TRUE(fs::exists(file)) << file;
  const auto written = fs::last_write_time(file);
  const Result<Located> again = locate("synthetic", std::nullopt);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(fs::last_write_time(file), written);
  EXPECT_EQ(again->train.pixels, made->train.pixels);
  unsetenv("XDG_CACHE_HOME");
}

TEST(Synthetic, DataIsRepeatableAndHasAllClasses) {
  const Dataset a = make_synthetic(200, 3, 32, 1);
  EXPECT_EQ(a.pixels, make_synthetic(200, 3, 32, 1).pixels);
  EXPECT_NE(a.pixels, make_synthetic(200, 3, 32, 2).pixels);
  EXPECT_EQ(std::set<std::uint8_t>(a.labels.begin(), a.labels.end()).size(), 10U);
}

/// 1 channel, 2 x 3, pixels 10, 20, 30 / 40, 50, 60; mean 0 and deviation 1 / 255, so that rendered values are pixels.
Dataset tiny() {
  return {.name = "tiny",
          .classes = 2,
          .channels = 1,
          .height = 2,
          .width = 3,
          .mean = {0},
          .deviation = {1.0F / 255},
          .pixels = {10, 20, 30, 40, 50, 60},
          .labels = {1}};
}

std::vector<float> rendered(const Augmentation& augmentation) {
  std::vector<float> output(6);
  render(tiny(), 0, augmentation, output.data());
  for (float& value : output) value = std::round(value);
  return output;
}

TEST(Augment, ShiftMirrorAndPaddingAreRight) {
  EXPECT_EQ(rendered({}), (std::vector<float>{10, 20, 30, 40, 50, 60}));
  EXPECT_EQ(rendered({.mirror = true}), (std::vector<float>{30, 20, 10, 60, 50, 40}));
  EXPECT_EQ(rendered({.shift_rows = 1}), (std::vector<float>{40, 50, 60, 0, 0, 0}));
  EXPECT_EQ(rendered({.shift_columns = -1}), (std::vector<float>{0, 10, 20, 0, 40, 50}));
  EXPECT_EQ(rendered({.shift_columns = 1, .mirror = true}), (std::vector<float>{0, 30, 20, 0, 60, 50}));
}

TEST(Augment, EveryShiftAndSideIsDrawn) {
  std::set<int> rows, columns;
  int mirrored = 0;
  for (std::uint64_t sample = 0; sample < 1000; ++sample) {
    const Augmentation drawn = draw_augmentation(SplitMix(1, 0, sample));
    rows.insert(drawn.shift_rows);
    columns.insert(drawn.shift_columns);
    mirrored += drawn.mirror ? 1 : 0;
  }
  EXPECT_EQ(rows, (std::set<int>{-4, -3, -2, -1, 0, 1, 2, 3, 4}));
  EXPECT_EQ(columns, rows);
  EXPECT_GT(mirrored, 400);
  EXPECT_LT(mirrored, 600);
}

TEST(Loader, BatchesDoNotDependOnWorkers) {
  const Dataset images = make_synthetic(50, 3, 8, 1);
  const LoaderOptions options{
      .order = distributed_order(50, 1, 2, true, 4, 0), .batch = 4, .augment = true, .seed = 4, .epoch = 0};
  Loader loader(images, options);
  LoaderOptions several = options;
  several.workers = 5;
  Loader again(images, several);
  EXPECT_EQ(loader.batches(), 7U);
  std::vector<std::int64_t> labels;
  std::size_t batches = 0;
  while (const std::optional<Batch> batch = loader.next()) {
    EXPECT_EQ(batch->images, again.next()->images);
    labels.insert(labels.end(), batch->labels.begin(), batch->labels.end());
    ++batches;
  }
  EXPECT_EQ(batches, 7U);
  std::vector<std::int64_t> expected;
  for (const std::size_t index : options.order) expected.push_back(images.labels[index]);
  EXPECT_EQ(labels, expected);
  EXPECT_FALSE(loader.next().has_value());
}

// Otherwise trainings on more ranks, and resumed trainings, would differ.
TEST(Loader, AugmentationDoesNotDependOnRanks) {
  constexpr std::size_t kImages = 36;
  const Dataset images = make_synthetic(kImages, 3, 8, 1);
  const auto seen = [&](int ranks, std::uint64_t epoch) {
    std::vector<std::vector<float>> by_index(kImages);
    for (int rank = 0; rank < ranks; ++rank) {
      const LoaderOptions options{.order = distributed_order(kImages, rank, ranks, true, 4, epoch),
                                  .batch = 5,
                                  .augment = true,
                                  .seed = 4,
                                  .epoch = epoch};
      Loader loader(images, options);
      std::size_t at = 0;
      while (const std::optional<Batch> batch = loader.next()) {
        for (std::size_t i = 0; i < batch->size(); ++i, ++at) {
          const auto begin = batch->images.begin() + static_cast<std::ptrdiff_t>(i * images.image_bytes());
          by_index[options.order[at]].assign(begin, begin + static_cast<std::ptrdiff_t>(images.image_bytes()));
        }
      }
    }
    return by_index;
  };
  const auto alone = seen(1, 3);
  EXPECT_EQ(std::ranges::count(alone, std::vector<float>()), 0);
  EXPECT_EQ(seen(2, 3), alone);
  EXPECT_EQ(seen(3, 3), alone);
  EXPECT_NE(seen(1, 4), alone) << "another epoch";
}

TEST(Loader, LoaderCanBeDestroyedEarly) {
  const Dataset images = make_synthetic(100, 3, 8, 1);
  Loader loader(images, {.order = distributed_order(100, 0, 1, false, 0, 0), .batch = 1, .workers = 3});
  EXPECT_EQ(loader.next()->labels.front(), images.labels[0]);
}

}  // namespace
}  // namespace shoal::data
