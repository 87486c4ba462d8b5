#include "bench/train/data/locate.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/train/data/cifar10.h"
#include "bench/train/data/fashion_mnist.h"
#include "bench/train/data/official.h"
#include "bench/train/data/synthetic.h"

namespace shoal::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCifarSubset = "cifar-10-subset.tar.xz";
constexpr const char* kCifarFolder = "cifar-10-batches-bin";
constexpr const char* kFashionFolder = "fashion-mnist";
constexpr std::size_t kCifarTrain = 50'000;
constexpr std::size_t kCifarTest = 10'000;
constexpr std::size_t kSyntheticTrain = 5'000;
constexpr std::size_t kSyntheticTest = 1'000;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// 12345 as "12,345".
std::string grouped(std::size_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

/// The user's cache folder, or nullopt if there is no home.
std::optional<fs::path> cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    return fs::path(cache) / "shoal" / "data";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return fs::path(home) / ".cache" / "shoal" / "data";
  return std::nullopt;
}

/// shared/data beside the checkout: the program is in <checkout>/build/<preset>/bin.
std::optional<fs::path> shared_folder() {
  std::error_code failed;
  fs::path above = fs::read_symlink("/proc/self/exe", failed).parent_path();
  for (int level = 0; level < 6 && !failed && above.has_relative_path(); ++level) {
    above = above.parent_path();
    if (is_there(above / "shared" / "data")) return above / "shared" / "data";
  }
  return std::nullopt;
}

/// Makes `target` (a folder that does not exist yet) once, even if several processes call this at the same time: `make` fills
/// a temporary folder that is then renamed.
Status make_once(const fs::path& target, const std::function<Status(const fs::path&)>& make) {
  std::error_code failed;
  fs::create_directories(target.parent_path(), failed);
  if (failed) return Status(StatusCode::system_error, target.parent_path().string() + ": " + failed.message());
  const fs::path lock_path = target.parent_path() / ("." + target.filename().string() + ".lock");
  const int lock = open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (lock < 0) return system_error("open " + lock_path.string(), errno);
  Status status;
  while (flock(lock, LOCK_EX) != 0) {
    if (errno != EINTR) status = system_error("lock " + lock_path.string(), errno);
    if (!status.ok()) break;
  }
  if (status.ok() && !is_there(target)) {
    const fs::path unfinished = target.string() + ".unfinished";
    fs::remove_all(unfinished, failed);
    fs::create_directories(unfinished, failed);
    status = failed ? Status(StatusCode::system_error, unfinished.string() + ": " + failed.message()) : make(unfinished);
    if (status.ok()) fs::rename(unfinished, target, failed);
    if (status.ok() && failed) status = Status(StatusCode::system_error, target.string() + ": " + failed.message());
  }
  close(lock);
  return status;
}

Status unpack(const fs::path& archive, const fs::path& folder) {
  const std::string from = archive.string();
  const std::string to = folder.string();
  const char* arguments[] = {"tar", "-xf", from.c_str(), "-C", to.c_str(), "--no-same-owner", nullptr};
  pid_t child = 0;
  if (const int error = posix_spawnp(&child, "tar", nullptr, nullptr, const_cast<char* const*>(arguments), environ);
      error != 0) {
    return system_error("start tar to unpack " + from, error);
  }
  int outcome = 0;
  while (waitpid(child, &outcome, 0) < 0) {
    if (errno != EINTR) return system_error("wait for tar", errno);
  }
  if (outcome != 0) return Status(StatusCode::system_error, from + ": tar could not unpack it (is xz or gzip installed?)");
  return {};
}

/// Training and test images, read from `folder`.
Result<Located> read_both(const std::string& dataset, const fs::path& folder) {
  const auto reader = dataset == "fashion_mnist" ? read_fashion_mnist : read_cifar10;
  Result<Dataset> train = reader(folder.string(), Split::train);
  if (!train.ok()) return train.status();
  Result<Dataset> test = reader(folder.string(), Split::test);
  if (!test.ok()) return test.status();
  Located located{.train = std::move(train).value(), .test = std::move(test).value(), .origin = folder.string()};
  if (dataset == "fashion_mnist") {
    const Result<bool> official = holds_official(folder.string(), official_fashion_mnist());
    if (!official.ok()) return official.status();
    located.origin += official.value() ? " (the official files, by their MD5)" : " (not the official files)";
    located.kind = official.value() ? Kind::official : Kind::other;
  } else if (located.train.size() == kCifarTrain && located.test.size() == kCifarTest) {
    located.kind = Kind::official;
  } else if (located.train.size() <= kCifarTrain && located.test.size() <= kCifarTest) {
    located.origin += " (fewer images than the official 50,000 and 10,000)";
    located.kind = Kind::subset;
  }
  return located;
}

/// The folder inside `base` with the data set's files, if there is one. Unpacks an archive found there into the cache.
Result<std::optional<fs::path>> find_in(const std::string& dataset, const fs::path& base) {
  const bool fashion = dataset == "fashion_mnist";
  const char* usual = fashion ? kFashionFolder : kCifarFolder;
  for (const fs::path& folder : {base / usual, base}) {
    const bool here = fashion ? is_there(folder / "train-images-idx3-ubyte.gz") || is_there(folder / "train-images-idx3-ubyte")
                              : is_there(folder / "data_batch_1.bin");
    if (here) return std::optional(folder);
  }
  const std::optional<fs::path> cache = cache_folder();
  if (fashion || !cache.has_value()) return std::optional<fs::path>();
  const OfficialFile whole = official_cifar10();
  for (const auto& [archive, name] : {std::pair(whole.name, "cifar-10"), std::pair(kCifarSubset, "cifar-10-subset")}) {
    if (!is_there(base / archive)) continue;
    const fs::path unpacked = *cache / name;
    const Status status = make_once(unpacked, [&, &archive = archive](const fs::path& into) {
      if (archive == whole.name) {
        if (const Result<bool> official = holds_official(base.string(), {&whole, 1}); !official.ok()) return official.status();
      }
      return unpack(base / archive, into);
    });
    if (!status.ok()) return status;
    return std::optional(unpacked / kCifarFolder);
  }
  return std::optional<fs::path>();
}

Result<Located> synthetic(const std::string& format) {
  const std::optional<fs::path> cache = cache_folder();
  if (!cache.has_value())
    return Status(StatusCode::not_found,
                  "no folder for a synthetic data set: neither XDG_CACHE_HOME nor HOME is set; use --data");
  const bool fashion = format == "fashion_mnist";
  const fs::path folder = *cache / (fashion ? "synthetic-fashion-mnist" : "synthetic-cifar10");
  const Status status = make_once(folder, [fashion](const fs::path& into) {
    const int channels = fashion ? 1 : 3;
    const int side = fashion ? 28 : 32;
    const Dataset train = make_synthetic(kSyntheticTrain, channels, side, 1);
    const Dataset test = make_synthetic(kSyntheticTest, channels, side, 2);
    if (fashion) {
      const Status written = write_fashion_mnist(train, into.string(), Split::train);
      return written.ok() ? write_fashion_mnist(test, into.string(), Split::test) : written;
    }
    const Status written = write_cifar10(train, (into / "data_batch_1.bin").string());
    return written.ok() ? write_cifar10(test, (into / "test_batch.bin").string()) : written;
  });
  if (!status.ok()) return status;
  Result<Located> located = read_both(format, folder);
  if (!located.ok()) return located;
  located->kind = Kind::generated;
  for (Dataset* half : {&located->train, &located->test}) {
    half->name = "synthetic";
    half->mean.assign(half->mean.size(), 0.5F);
    half->deviation.assign(half->deviation.size(), 0.25F);
  }
  return located;
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::official:
      return "official";
    case Kind::subset:
      return "subset";
    case Kind::generated:
      return "generated";
    case Kind::other:
      break;
  }
  return "other";
}

std::string describe(const Located& images) {
  const bool fashion = images.train.name == "fashion_mnist";
  const std::string name = fashion ? "Fashion-MNIST" : "CIFAR-10";
  const std::string train = grouped(images.train.size());
  const std::string test = grouped(images.test.size());
  switch (images.kind) {
    case Kind::generated:
      return "generated images, " + train + " for training and " + test + " for testing";
    case Kind::official:
      return name + ", the official " + train + " training and " + test + " test images";
    case Kind::subset:
      return name + " subset, " + train + " of " + grouped(kCifarTrain) + " training and " + test + " of " +
             grouped(kCifarTest) + " test images";
    case Kind::other:
      break;
  }
  return "images other than the official ones, as files of " + name + ", " + train + " for training and " + test +
         " for testing";
}

Result<Located> locate(const std::string& dataset, const std::optional<std::string>& folder) {
  if (dataset == "synthetic") return synthetic("cifar10");
  if (dataset != "cifar10" && dataset != "fashion_mnist") {
    return Status(StatusCode::invalid_argument,
                  "unknown data set \"" + dataset + "\"; known: cifar10, fashion_mnist, synthetic");
  }
  std::optional<std::string> asked = folder;
  if (const char* set = std::getenv("SHOAL_DATA_DIR"); !asked.has_value() && set != nullptr && *set != '\0') asked = set;
  if (asked.has_value()) {
    Result<std::optional<fs::path>> found = find_in(dataset, *asked);
    if (!found.ok()) return found.status();
    if (found->has_value()) return read_both(dataset, **found);
    return Status(StatusCode::not_found, *asked + ": contains no " + dataset + " files (searched there and in " +
                                             (dataset == "cifar10" ? kCifarFolder : kFashionFolder) + ")");
  }
  std::string searched;
  for (const std::optional<fs::path>& base : {shared_folder(), cache_folder()}) {
    if (!base.has_value()) continue;
    Result<std::optional<fs::path>> found = find_in(dataset, *base);
    if (!found.ok()) return found.status();
    if (found->has_value()) return read_both(dataset, **found);
    searched += (searched.empty() ? "" : ", ") + base->string();
  }
  Result<Located> made = synthetic(dataset);
  if (made.ok()) made->origin = "synthetic images in " + made->origin + ", because no " + dataset + " was found in " + searched;
  return made;
}

}  // namespace shoal::data
