// A fake EC2 metadata service on loopback.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace shoal::fake {

class MetadataServer {
 public:
  /// The answer to a request. `hold`: the connection stays open until the server ends.
  struct Reply {
    std::string bytes;
    bool hold = false;
    std::chrono::milliseconds drip{0};  ///< pause between bytes; 0: all at once
  };
  using Handler = std::function<Reply(const std::string& request)>;

  explicit MetadataServer(Handler handler) : handler_(std::move(handler)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), length);
    ::listen(listener_, 16);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    ::pipe(end_.data());
    thread_ = std::thread([this] { serve(); });
  }
  ~MetadataServer() {
    ::close(end_[1]);
    thread_.join();
    ::close(end_[0]);
    ::close(listener_);
    for (const int held : held_) ::close(held);
  }
  MetadataServer(const MetadataServer&) = delete;
  MetadataServer& operator=(const MetadataServer&) = delete;

  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] int requests() const { return requests_.load(); }

  static Reply answer(const std::string& body, int status = 200) {
    return {"HTTP/1.1 " + std::to_string(status) +
            " Reason\r\nContent-Type: text/plain\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body};
  }
  /// Behaves like EC2: a token for a PUT, and with that token the texts at their paths.
  static Handler ec2_like(std::map<std::string, std::string> texts) {
    return [texts = std::move(texts)](const std::string& request) {
      if (request.starts_with("PUT /latest/api/token ")) {
        return request.find("X-aws-ec2-metadata-token-ttl-seconds: ") == std::string::npos ? answer("", 400)
                                                                                           : answer("TOKEN==");
      }
      if (request.find("X-aws-ec2-metadata-token: TOKEN==\r\n") == std::string::npos) return answer("", 401);
      const std::string path = request.substr(4, request.find(' ', 4) - 4);
      const auto found = texts.find(path.substr(std::string("/latest/meta-data/").size()));
      return found == texts.end() ? answer("not found", 404) : answer(found->second);
    };
  }

 private:
  bool ends_within(int milliseconds) const {
    pollfd entry{end_[0], POLLIN, 0};
    return ::poll(&entry, 1, milliseconds) != 0;
  }
  void serve() {
    for (;;) {
      std::array<pollfd, 2> entries{pollfd{listener_, POLLIN, 0}, pollfd{end_[0], POLLIN, 0}};
      ::poll(entries.data(), entries.size(), -1);
      if (entries[1].revents != 0) return;
      const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) continue;
      std::string request;
      std::array<char, 2048> piece{};
      while (request.find("\r\n\r\n") == std::string::npos) {
        std::array<pollfd, 2> waits{pollfd{client, POLLIN, 0}, pollfd{end_[0], POLLIN, 0}};
        ::poll(waits.data(), waits.size(), -1);
        const ssize_t size = waits[1].revents != 0 ? 0 : ::recv(client, piece.data(), piece.size(), 0);
        if (size <= 0) break;
        request.append(piece.data(), static_cast<std::size_t>(size));
      }
      ++requests_;
      const Reply reply = handler_(request);
      const std::size_t step = reply.drip.count() > 0 ? 1 : std::max<std::size_t>(reply.bytes.size(), 1);
      for (std::size_t at = 0; at < reply.bytes.size(); at += step) {
        const std::string part = reply.bytes.substr(at, step);
        if (::send(client, part.data(), part.size(), MSG_NOSIGNAL) < 0) break;
        if (reply.drip.count() > 0 && ends_within(static_cast<int>(reply.drip.count()))) break;
      }
      if (reply.hold) {
        held_.push_back(client);
      } else {
        ::close(client);
      }
    }
  }

  Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::array<int, 2> end_{-1, -1};
  std::vector<int> held_;
  std::atomic<int> requests_{0};
  std::thread thread_;
};

}  // namespace shoal::fake
