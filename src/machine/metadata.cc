#include "src/machine/metadata.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <vector>

#include <fmt/format.h>

namespace shoal {
namespace {

using Instant = std::chrono::steady_clock::time_point;

constexpr std::size_t kMaxHead = 8 << 10;
constexpr std::size_t kMaxValueBytes = 256;
constexpr int kTokenSeconds = 60;

Status nonsense(const std::string& what) {
  return {StatusCode::invalid_argument, "malformed HTTP response from the metadata service: " + what};
}
Status too_late(std::string_view while_doing) {
  return {StatusCode::timeout, fmt::format("the metadata service did not answer in time ({})", while_doing)};
}

char lower(char character) { return character >= 'A' && character <= 'Z' ? static_cast<char>(character | 0x20) : character; }

bool same_words(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

/// Whether `text` is one printable line of limited length, which can be shown unchanged.
bool is_plain(std::string_view text) {
  return !text.empty() && text.size() <= kMaxValueBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

/// Sleeps until `socket` is ready for `events`.
Status wait_for(int socket, short events, Instant deadline, std::string_view doing) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return too_late(doing);
    pollfd entry{socket, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return system_error("wait for the metadata service", errno);
  }
}

/// A socket that closes itself.
struct Connection {
  explicit Connection(int handle) : handle(handle) {}
  ~Connection() {
    if (handle >= 0) ::close(handle);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  int handle;
};

Status connect_to(const addrinfo& address, int socket, Instant deadline) {
  if (::connect(socket, address.ai_addr, address.ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS) return system_error("connect to the metadata service", errno);
  if (Status status = wait_for(socket, POLLOUT, deadline, "connecting"); !status.ok()) return status;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? Status() : system_error("connect to the metadata service", error);
}

Status send_all(int socket, std::string_view text, Instant deadline) {
  while (!text.empty()) {
    const ssize_t sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      text.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (Status status = wait_for(socket, POLLOUT, deadline, "sending the request"); !status.ok()) return status;
    } else if (errno != EINTR) {
      return system_error("send to the metadata service", errno);
    }
  }
  return {};
}

Result<HttpAnswer> receive(int socket, Instant deadline) {
  std::string bytes;
  for (;;) {
    std::array<char, 2048> piece{};
    const ssize_t size = ::recv(socket, piece.data(), piece.size(), 0);
    if (size < 0 && errno == EAGAIN) {
      if (Status status = wait_for(socket, POLLIN, deadline, "waiting for the answer"); !status.ok()) return status;
      continue;
    }
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return system_error("receive from the metadata service", errno);
    bytes.append(piece.data(), static_cast<std::size_t>(size));
    const auto answer = parse_answer(bytes, size == 0);
    if (!answer.ok()) return answer.status();
    if (answer->has_value()) return **answer;
    // The deadline also holds for a server that sends its bytes slowly.
    if (std::chrono::steady_clock::now() >= deadline) return too_late("reading the answer");
  }
}

Result<HttpAnswer> ask(const MetadataEndpoint& endpoint, std::string_view method, std::string_view path,
                       std::string_view header, Instant deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(endpoint.address.c_str(), endpoint.port.c_str(), &hints, &found); error != 0) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("metadata service at {}: {}", endpoint.address, ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  const Connection connection(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connection.handle < 0) return system_error("a socket for the metadata service", errno);
  if (Status status = connect_to(*found, connection.handle, deadline); !status.ok()) return status;
  const bool v6 = endpoint.address.find(':') != std::string::npos;
  const std::string request =
      fmt::format("{} /latest/{} HTTP/1.1\r\nHost: {}{}{}\r\n{}\r\nConnection: close\r\n{}\r\n", method, path, v6 ? "[" : "",
                  endpoint.address, v6 ? "]" : "", header, method == "PUT" ? "Content-Length: 0\r\n" : "");
  if (Status status = send_all(connection.handle, request, deadline); !status.ok()) return status;
  return receive(connection.handle, deadline);
}

/// Status and length of the body from the header of a response.
struct Head {
  int status = 0;
  std::optional<std::size_t> body_bytes;
};

Result<Head> parse_head(std::string_view head) {
  Head parsed;
  const std::string_view line = head.substr(0, head.find("\r\n"));
  if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ') return nonsense("no status line");
  const auto [end, error] = std::from_chars(line.data() + 9, line.data() + 12, parsed.status);
  if (error != std::errc() || end != line.data() + 12 || parsed.status < 100) return nonsense("no status");
  for (std::size_t begin = line.size(); begin < head.size();) {
    begin += 2;
    const std::size_t stop = std::min(head.find("\r\n", begin), head.size());
    const std::string_view field = head.substr(begin, stop - begin);
    begin = stop;
    const std::size_t colon = field.find(':');
    if (colon == std::string_view::npos) return nonsense("a header field without a colon");
    const std::string_view name = field.substr(0, colon);
    if (same_words(name, "transfer-encoding")) return nonsense("chunked transfer encoding is not supported");
    if (!same_words(name, "content-length")) continue;
    std::string_view value = field.substr(colon + 1);
    while (value.starts_with(' ')) value.remove_prefix(1);
    std::size_t bytes = 0;
    const auto [rest, problem] = std::from_chars(value.data(), value.data() + value.size(), bytes);
    if (problem != std::errc() || rest != value.data() + value.size() || parsed.body_bytes.value_or(bytes) != bytes) {
      return nonsense("Content-Length is not a number");
    }
    parsed.body_bytes = bytes;
  }
  return parsed;
}

}  // namespace

Result<MetadataEndpoint> parse_endpoint(std::string_view url) {
  const Status error(
      StatusCode::invalid_argument,
      fmt::format("'{:.100}' is not like http://169.254.169.254 (numeric address, optionally with a port)", url));
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return error;
  url.remove_prefix(kScheme.size());
  if (url.ends_with('/')) url.remove_suffix(1);
  MetadataEndpoint endpoint;
  if (url.starts_with('[')) {
    const std::size_t end = url.find(']');
    if (end == std::string_view::npos) return error;
    endpoint.address = url.substr(1, end - 1);
    url.remove_prefix(end + 1);
  } else {
    endpoint.address = url.substr(0, url.find(':'));
    url.remove_prefix(endpoint.address.size());
  }
  if (!url.empty()) {
    int port = 0;
    const auto [end, problem] = std::from_chars(url.data() + 1, url.data() + url.size(), port);
    if (url[0] != ':' || problem != std::errc() || end != url.data() + url.size() || port < 1 || port > 65535) return error;
    endpoint.port = url.substr(1);
  }
  const bool numeric = std::all_of(endpoint.address.begin(), endpoint.address.end(), [](char c) {
    return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'f') || c == '.' || c == ':';
  });
  if (endpoint.address.empty() || !numeric) return error;
  return endpoint;
}

Result<std::optional<HttpAnswer>> parse_answer(std::string_view bytes, bool ended) {
  if (bytes.size() > kMaxAnswerBytes) return nonsense(fmt::format("more than {} bytes", kMaxAnswerBytes));
  const std::size_t head_end = bytes.find("\r\n\r\n");
  if (head_end == std::string_view::npos || head_end > kMaxHead) {
    if (bytes.size() > kMaxHead) return nonsense("unterminated header");
    if (ended) return nonsense(bytes.empty() ? "no data" : "truncated header");
    return std::optional<HttpAnswer>();
  }
  const auto head = parse_head(bytes.substr(0, head_end));
  if (!head.ok()) return head.status();
  const std::string_view body = bytes.substr(head_end + 4);
  if (head->body_bytes.value_or(0) > kMaxAnswerBytes) return nonsense(fmt::format("a body of {} bytes", *head->body_bytes));
  if (head->body_bytes ? body.size() < *head->body_bytes : !ended) {
    if (ended) return nonsense("truncated body");
    return std::optional<HttpAnswer>();
  }
  return std::optional(HttpAnswer{head->status, std::string(body.substr(0, head->body_bytes.value_or(body.size())))});
}

Result<std::map<std::string, std::string>> read_metadata(const MetadataEndpoint& endpoint,
                                                         std::span<const std::string_view> paths,
                                                         std::chrono::milliseconds budget) {
  const Instant deadline = std::chrono::steady_clock::now() + budget;
  const auto token =
      ask(endpoint, "PUT", "api/token", fmt::format("X-aws-ec2-metadata-token-ttl-seconds: {}", kTokenSeconds), deadline);
  if (!token.ok()) return token.status();
  if (token->status != 200) {
    return Status(StatusCode::unsupported, fmt::format("the metadata service refused a token (HTTP {})", token->status));
  }
  if (!is_plain(token->body)) return nonsense("the token is not a line of printable characters");
  std::map<std::string, std::string> texts;
  for (const std::string_view path : paths) {
    const auto answer =
        ask(endpoint, "GET", fmt::format("meta-data/{}", path), "X-aws-ec2-metadata-token: " + token->body, deadline);
    if (!answer.ok() && answer.status().code() == StatusCode::timeout) break;  // the remaining requests would fail as well
    if (!answer.ok() || answer->status != 200) continue;
    std::string_view text = answer->body;
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
    if (is_plain(text)) texts.emplace(path, text);
  }
  return texts;
}

}  // namespace shoal
