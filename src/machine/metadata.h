// The instance's metadata service (IMDSv2): a few short texts over HTTP, within a time limit; optional information only.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <shoal/status.h>

namespace shoal {

/// The address of the service: a numeric address, because name resolution may take seconds.
struct MetadataEndpoint {
  std::string address;  ///< "169.254.169.254", "fd00:ec2::254"
  std::string port = "80";
};

/// "http://169.254.169.254", "http://127.0.0.1:8080", "http://[fd00:ec2::254]". Error: invalid_argument for anything else.
Result<MetadataEndpoint> parse_endpoint(std::string_view url);

struct HttpAnswer {
  int status = 0;  ///< 200, 404, ...
  std::string body;
};

inline constexpr std::size_t kMaxAnswerBytes = 16 << 10;  ///< head and body

/// An HTTP/1 response from the bytes received so far; nothing if more bytes are needed. `ended`: no more will arrive. The
/// length of the body is Content-Length, or up to the end. Errors: invalid_argument for a response that is malformed, longer
/// than kMaxAnswerBytes, truncated, or in chunks.
Result<std::optional<HttpAnswer>> parse_answer(std::string_view bytes, bool ended);

/// Texts under latest/meta-data/ by their paths ("instance-type", "placement/region"): a token first, then one request for
/// each. Paths that the service does not have, and answers other than one line of at most 256 printable characters, are left
/// out. The call ends within `budget` in every case and returns the answers received by then, unless the token is missing.
/// Errors: timeout, system_error (no process listens), unsupported (the service refuses), invalid_argument (malformed
/// response).
Result<std::map<std::string, std::string>> read_metadata(const MetadataEndpoint& endpoint,
                                                         std::span<const std::string_view> paths,
                                                         std::chrono::milliseconds budget);

}  // namespace shoal
