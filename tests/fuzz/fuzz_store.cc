// What clients say to the store. The first byte says whether the client belongs to the job; the rest are pieces, each behind
// its length, of what it says next.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "src/bootstrap/store_session.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Key key = key_from_text("nobody's");
  StoreTable table{"job", key, {{"known", "value"}}};
  StoreSession session(table);
  if (size == 0) return 0;
  const bool member = data[0] % 2 == 1;
  if (member) {
    const Nonce mine{};
    session.receive(store_hello("job", mine));
    Nonce theirs;
    std::memcpy(theirs.data(), session.unsent.data() + 1 + 4 + 3, theirs.size());
    session.receive(as_text(store_client_proof(key, "job", mine, theirs)));
    if (!session.trusted()) std::abort();
  }
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  while (!rest.empty()) {
    const std::size_t piece = 1 + static_cast<unsigned char>(rest.front()) * 4U;
    rest.remove_prefix(1);
    session.receive(rest.substr(0, piece));
    session.look_again();
    rest.remove_prefix(std::min(piece, rest.size()));
  }
  // A stranger changes nothing, learns nothing and is never taken for a member.
  if (!member && (session.trusted() || table.values.size() != 1 || session.unsent.size() > 1024)) std::abort();
  if (session.over() && !member && session.refused().empty()) std::abort();
  return 0;
}
