// Encrypted records decrypt unchanged and in order, or are rejected.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "src/trust/record_cipher.h"

namespace shoal {
namespace {

constexpr std::size_t kMost = 1000;

std::vector<std::byte> encrypted(RecordCipher& end, std::string_view text) {
  end.seal(std::as_bytes(std::span(text)));
  const auto out = end.outgoing();
  std::vector<std::byte> record(out.begin(), out.end());
  end.sent(record.size());
  return record;
}

/// The text of the record that `bytes` complete; "" if it is incomplete, "?" if it is rejected.
std::string decrypted(RecordCipher& end, std::span<const std::byte> bytes) {
  std::memcpy(end.room().data(), bytes.data(), bytes.size());
  end.arrived(bytes.size());
  const std::size_t length = end.waiting_bytes();
  if (length == 0) return "";
  std::string text(length, '\0');
  if (length > kMost || !end.open(reinterpret_cast<std::byte*>(text.data()))) return "?";
  return text;
}

class EncryptedRecords : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !has_aes()) GTEST_SKIP() << "this processor has no AES instructions";
  }
  static SealingKeys keys(bool connects, std::string_view transcript = "both nonces", std::string_view use = "test traffic") {
    return derive_sealing_keys(key_from_text("the job's key"), use, transcript, connects, GetParam());
  }
};

TEST_P(EncryptedRecords, ArriveInBothDirections) {
  RecordCipher one(keys(true), kMost);
  RecordCipher other(keys(false), kMost);
  for (int i = 0; i < 50; ++i) {
    const std::string text(static_cast<std::size_t>(1 + i * 20), static_cast<char>('a' + i % 26));
    EXPECT_EQ(decrypted(other, encrypted(one, text)), text);
    EXPECT_EQ(decrypted(one, encrypted(other, text)), text);
  }
}

TEST_P(EncryptedRecords, DecryptOnlyWhenComplete) {
  RecordCipher one(keys(true), kMost);
  RecordCipher other(keys(false), kMost);
  const auto record = encrypted(one, "byte by byte");
  EXPECT_EQ(record.size(), 12 + RecordCipher::kOverheadBytes);
  for (std::size_t i = 0; i + 1 < record.size(); ++i) EXPECT_EQ(decrypted(other, std::span(record).subspan(i, 1)), "");
  EXPECT_EQ(decrypted(other, std::span(record).last(1)), "byte by byte");
}

TEST_P(EncryptedRecords, AreRejectedWithAnyChangedBit) {
  RecordCipher one(keys(true), kMost);
  const auto good = encrypted(one, "as it was");
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    RecordCipher other(keys(false), kMost);
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(decrypted(other, bad), "as it was") << "bit " << bit;
  }
}

TEST_P(EncryptedRecords, AreRejectedIfReplayedReorderedOrMisrouted) {
  RecordCipher one(keys(true), kMost);
  const auto first = encrypted(one, "first");
  const auto second = encrypted(one, "second");
  {
    RecordCipher other(keys(false), kMost);
    EXPECT_EQ(decrypted(other, first), "first");
    EXPECT_EQ(decrypted(other, first), "?");
  }
  {
    RecordCipher other(keys(false), kMost);
    EXPECT_EQ(decrypted(other, second), "?");
  }
  RecordCipher of_another_connection(keys(false, "other nonces"), kMost);
  EXPECT_EQ(decrypted(of_another_connection, first), "?");
  RecordCipher of_another_use(keys(false, "both nonces", "other traffic"), kMost);
  EXPECT_EQ(decrypted(of_another_use, first), "?");
  RecordCipher to_itself(keys(true), kMost);
  EXPECT_EQ(decrypted(to_itself, first), "?");
}

INSTANTIATE_TEST_SUITE_P(Ciphers, EncryptedRecords, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "aes_gcm" : "chacha20_poly1305"; });

}  // namespace
}  // namespace shoal
