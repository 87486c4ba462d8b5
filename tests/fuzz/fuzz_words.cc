// What others say in a few words, safe for any bytes: a peer of its call, why it refuses or has given up, where its shared
// memory is to be had; and the file that holds the job's key.
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
#include "transports/shm/message.h"
#include "transports/shm/rendezvous.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

namespace {

// An error whose words draw nothing on a terminal.
void expect_error_for_a_terminal(const Status& status) {
  if (status.ok() || status.message().empty()) std::abort();
  for (const unsigned char c : status.message()) {
    if (c < 0x20 || c == 0x7f) std::abort();
  }
}

void hear_refusals(std::string_view text) {
  expect_error_for_a_terminal(parse_refusal(3, text));
  if (const auto cause = parse_cause(text)) expect_error_for_a_terminal(*cause);
  if (!parse_cause("3 " + std::string(text))) std::abort();
  shm::Message message;
  std::memcpy(static_cast<void*>(&message), text.data(), std::min(text.size(), sizeof message));
  const Status refusal = shm::refusal_status(message);
  if (refusal.ok() || refusal.message().size() > message.text.size()) std::abort();
  if (!refusal.message().empty()) expect_error_for_a_terminal(refusal);
}

// As it is, and with the first bytes of one of this job's rank 0, so that what lies behind them is reached.
void find_leader(std::string_view text) {
  constexpr std::uint64_t kJob = 7;
  static const std::string real = shm::Listener::create(0, kJob)->address();
  const auto look = [](std::string_view bytes) {
    const auto where = shm::parse_address(bytes, 0, kJob);
    if (!where.ok()) return expect_error_for_a_terminal(where.status());
    if (where->name.empty() || where->name.size() > 108 ||
        where->name.data() + where->name.size() != bytes.data() + bytes.size())
      std::abort();
  };
  look(text);
  for (const std::size_t own : {std::size_t{12}, std::size_t{24}, std::size_t{40}})
    look(real.substr(0, own) + std::string(text));
}

// What it says of the file tells nothing of the key: it is the same for any of that length.
void read_key(std::string_view text) {
  const auto read = [](std::string_view bytes) {
    const Descriptor file(::memfd_create("key", MFD_CLOEXEC));
    if (!file.valid() || ::fchmod(file.get(), 0600) != 0) std::abort();
    if (::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
    // Always the same name, as it stands in the messages.
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
  hear_refusals(text);
  find_leader(text);
  read_key(text);
  return 0;
}
