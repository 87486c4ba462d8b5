#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace shoal::fuzz {
namespace {

constexpr std::array<std::uint64_t, 14> kEdges = {0,
                                                  1,
                                                  0x7f,
                                                  0x80,
                                                  0xff,
                                                  0x7fff,
                                                  0x8000,
                                                  0xffff,
                                                  0x7fffffff,
                                                  0x80000000,
                                                  0xffffffff,
                                                  0x7fffffffffffffff,
                                                  0x8000000000000000,
                                                  0xffffffffffffffff};
constexpr std::array<std::string_view, 12> kWords = {
    "-1", "1e999", "99999999999999999999", "null", "[]", "{}", "\"\"", "[[", "\xff\xfe", "0x10", "1.5", " "};

class Mutation {
 public:
  Mutation(std::string bytes, const std::vector<std::string>& pool, std::mt19937_64& random)
      : bytes_(std::move(bytes)), pool_(pool), random_(random) {}

  void once() {
    switch (below(10)) {
      case 0:
        if (!bytes_.empty()) bytes_[below(bytes_.size())] ^= static_cast<char>(1U << below(8));
        break;
      case 1:
        if (!bytes_.empty()) bytes_[below(bytes_.size())] = static_cast<char>(random_());
        break;
      case 2:
        put_number();
        break;
      case 3:
        bytes_.insert(below(bytes_.size() + 1), kWords[below(kWords.size())]);
        break;
      case 4:
        bytes_.erase(below(bytes_.size() + 1), 1 + below(16));
        break;
      case 5:
        bytes_.resize(below(bytes_.size() + 1));
        break;
      case 6:
        repeat();
        break;
      case 7: {  // a part of another input
        const std::string& other = pool_[below(pool_.size())];
        const std::size_t from = below(other.size() + 1);
        bytes_.insert(below(bytes_.size() + 1), other.substr(from, 1 + below(64)));
        break;
      }
      case 8: {  // noise
        std::string noise(1 + below(32), '\0');
        for (char& byte : noise) byte = static_cast<char>(random_());
        bytes_.insert(below(bytes_.size() + 1), noise);
        break;
      }
      default:
        change_digit();
    }
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void put_number() {
    const std::size_t width = std::size_t{1} << below(4);
    if (bytes_.size() < width) return;
    const std::size_t at = below(bytes_.size() - width + 1);
    const std::uint64_t number = kEdges[below(kEdges.size())] + below(3) - 1;
    const bool big_endian = below(2) == 0;
    for (std::size_t i = 0; i < width; ++i)
      bytes_[at + i] = static_cast<char>(number >> (8 * (big_endian ? width - 1 - i : i)));
  }
  void repeat() {
    const std::size_t from = below(bytes_.size());
    const std::string part = bytes_.substr(from, 1 + below(8));
    const std::size_t times = below(8) == 0 ? below(20'000) : below(20);
    std::string many;
    for (std::size_t i = 0; i < times; ++i) many += part;
    bytes_.insert(from, many);
  }
  void change_digit() {
    std::vector<std::size_t> digits;
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (bytes_[i] >= '0' && bytes_[i] <= '9') digits.push_back(i);
    }
    if (!digits.empty()) bytes_[digits[below(digits.size())]] = static_cast<char>('0' + below(10));
  }

  std::string bytes_;
  const std::vector<std::string>& pool_;
  std::mt19937_64& random_;
};

}  // namespace

std::string mutate(const std::vector<std::string>& pool, std::size_t longest, std::mt19937_64& random) {
  Mutation mutation(pool[random() % pool.size()], pool, random);
  for (std::uint64_t changes = 1 + random() % 6; changes > 0; --changes) mutation.once();
  std::string bytes = mutation.take();
  if (bytes.size() > longest) bytes.resize(longest);
  return bytes;
}

}  // namespace shoal::fuzz
