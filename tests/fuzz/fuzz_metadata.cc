// Answers of a metadata service, and the address that a user gives for it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "src/machine/metadata.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto ended = parse_answer(text, true);
  // At the end of the input, the result is an answer or an error, never "incomplete".
  if (ended.ok() && !ended->has_value()) std::abort();
  if (ended.ok() && ((*ended)->status < 100 || (*ended)->status > 999 || (*ended)->body.size() > size)) std::abort();
  const auto open = parse_answer(text, false);
  // An answer that is complete before the end is the same at the end.
  if (open.ok() && open->has_value() && (!ended.ok() || (*open)->body != (*ended)->body)) std::abort();
  const auto endpoint = parse_endpoint(text);
  if (endpoint.ok() && (endpoint->address.empty() || endpoint->address.find_first_of("/ \r\n") != std::string::npos))
    std::abort();
  return 0;
}
