// Answers of rank 0's store to a keeper, encrypted: of a later version, or with a bug. The first byte: even for the last step.
// The rest are pieces of answers, each after its length.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <shoal/store.h>

#include "src/join/store_relay.h"
#include "src/join/store_session.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Key key = key_from_text("nobody's");
  if (size == 0) return 0;
  const Nonce nonce{};
  StoreTable table{"job", key, {}};
  StoreRelay relay(table, store_cipher(key, "job", nonce, nonce, true), 0);
  table.relay = &relay;
  StoreStep& step = table.steps.try_emplace(3, 2).first->second;
  step.last = data[0] % 2 == 0;
  step.put(1, "value");
  relay.gave(3);
  if (relay.unsent.empty()) std::abort();
  RecordCipher cipher = store_cipher(key, "job", nonce, nonce, false);
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  while (!rest.empty()) {
    const std::size_t piece = 1 + static_cast<unsigned char>(rest.front()) * 4U;
    rest.remove_prefix(1);
    std::string answer;
    append_sealed(answer, cipher, rest.substr(0, piece));
    relay.receive(answer);
    rest.remove_prefix(std::min(piece, rest.size()));
  }
  // Only the end of the last step ends the connection without an error.
  if (relay.over() && !table.over && !table.died.contains(0)) std::abort();
  relay.end();
  if (!table.over && !table.died.contains(0)) std::abort();
  return 0;
}
