// The instance's metadata service (IMDSv2): a few short texts over HTTP, within a budget of time, never needed.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <shoal/status.h>

namespace shoal {

/// Where the service listens: a numeric address, since asking for a name may take seconds.
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

/// An HTTP/1 answer from the bytes that have come; nothing where more are needed. `ended`: no more will come. A body lasts for
/// as long as Content-Length says, or to the end. Errors: invalid_argument for what is no such answer, is longer than
/// kMaxAnswerBytes, is cut off, or comes in chunks.
Result<std::optional<HttpAnswer>> parse_answer(std::string_view bytes, bool ended);

/// Texts under latest/meta-data/ by their paths ("instance-type", "placement/region"): a token first, then one request for
/// each. Paths that the service does not have, and answers that are no line of at most 256 printable characters, are left out.
/// All of it ends within `budget`, whatever the service does: what came by then is returned, unless the token did not.
/// Errors: timeout, system_error (nobody listens), unsupported (the service refuses), invalid_argument (it talks nonsense).
Result<std::map<std::string, std::string>> read_metadata(const MetadataEndpoint& endpoint,
                                                         std::span<const std::string_view> paths,
                                                         std::chrono::milliseconds budget);

}  // namespace shoal
