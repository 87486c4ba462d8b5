// Short texts from outside: call signatures, refusals and abort causes of peers, addresses of shared memory; and the file with
// the job key.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "src/base/descriptor.h"
#include "src/diagnosis/signature.h"
#include "src/join/job_key.h"
#include "src/join/startup_exchange.h"
#include "src/join/text_list.h"
#include "transports/shm/listener.h"
#include "transports/shm/message.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

namespace {

// Expects an error whose message has no control characters.
void expect_printable_error(const Status& status) {
  if (status.ok() || status.message().empty()) std::abort();
  for (const unsigned char c : status.message()) {
    if (c < 0x20 || c == 0x7f) std::abort();
  }
}

void parse_refusals(std::string_view text) {
  if (const auto why = parse_refusal(text)) expect_printable_error(*why);
  if (!text.empty() && !parse_refusal("3 " + std::string(text))) std::abort();
  if (const auto texts = split_texts(text, 2); texts && split_texts(join_texts(*texts), 2) != texts) std::abort();
  shm::Message message;
  std::memcpy(static_cast<void*>(&message), text.data(), std::min(text.size(), sizeof message));
  const Status refusal = shm::refusal_status(message);
  if (refusal.ok() || refusal.message().size() > message.text.size()) std::abort();
  if (!refusal.message().empty()) expect_printable_error(refusal);
}

// The text as it is, and after the first bytes of a valid address of rank 0, so that later fields are parsed.
void find_leader(std::string_view text) {
  constexpr std::uint64_t kJob = 7;
  static const std::string real = shm::Listener::create(0, kJob)->address();
  const auto parse = [](std::string_view bytes) {
    const auto where = shm::parse_address(bytes, 0, kJob);
    if (!where.ok()) return expect_printable_error(where.status());
    if (where->name.empty() || where->name.size() > 108 ||
        where->name.data() + where->name.size() != bytes.data() + bytes.size())
      std::abort();
  };
  parse(text);
  for (const std::size_t own : {std::size_t{12}, std::size_t{24}, std::size_t{40}, std::size_t{48}})
    parse(real.substr(0, own) + std::string(text));
}

// Error messages about the file do not reveal the key: they are the same for any key of that length.
void read_key(std::string_view text) {
  const auto read = [](std::string_view bytes) {
    const Descriptor file(::memfd_create("key", MFD_CLOEXEC));
    if (!file.valid() || ::fchmod(file.get(), 0600) != 0) std::abort();
    if (::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
    // The name is part of the messages, so it must be the same each time.
    constexpr int kPlace = 200;
    if (::dup3(file.get(), kPlace, O_CLOEXEC) != kPlace) std::abort();
    ::setenv("SHOAL_JOB_KEY_FILE", ("/proc/self/fd/" + std::to_string(kPlace)).c_str(), 1);
    auto key = job_key_text();
    ::unsetenv("SHOAL_JOB_KEY_FILE");
    ::close(kPlace);
    return key;
  };
  const auto key = read(text);
  std::string other(text);
  for (char& c : other) c = c == '\n' || c == '\r' ? c : 'x';
  const auto masked = read(other);
  if (key.ok() != masked.ok() || key.status().to_string() != masked.status().to_string()) std::abort();
  if (key.ok() && (!*key || (*key)->size() < kShortestKey || !text.starts_with(**key))) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  CallSignature mine;
  CallSignature theirs;
  std::memcpy(&theirs, data, std::min(size, sizeof theirs));
  if (to_string(theirs).empty()) std::abort();
  if (difference(mine, theirs).empty() && !(mine == theirs)) std::abort();
  static_cast<void>(pair_difference(mine, "rank 0", theirs, "rank 1"));
  static_cast<void>(between_two(theirs, 5, 7));

  const std::string_view text(reinterpret_cast<const char*>(data), size);
  parse_refusals(text);
  find_leader(text);
  read_key(text);
  return 0;
}
