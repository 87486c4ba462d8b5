// What peers say in structures of fixed size: of their call, and why they refuse.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "src/engine/signature.h"
#include "transports/shm/message.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  CallSignature mine;
  CallSignature theirs;
  std::memcpy(&theirs, data, std::min(size, sizeof theirs));
  if (to_string(theirs).empty()) std::abort();
  if (difference(mine, theirs).empty() && !(mine == theirs)) std::abort();
  static_cast<void>(pair_difference(mine, "rank 0", theirs, "rank 1"));
  static_cast<void>(between_two(theirs, 5, 7));

  shm::Message message;
  std::memcpy(static_cast<void*>(&message), data, std::min(size, sizeof message));
  const Status refusal = shm::refusal_status(message);
  if (refusal.ok() || refusal.message().size() > message.text.size()) std::abort();
  return 0;
}
