// The metadata service: correct, absent, silent, slow, half-open, endless or forged. No query takes longer than its budget.
#include "src/machine/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "tests/mentions.h"
#include "tests/unit/fake_metadata.h"

namespace shoal {
namespace {

using fake::MetadataServer;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Mentions;
using ::testing::Pair;

constexpr std::array<std::string_view, 3> kPaths{"instance-type", "instance-id", "placement/group-name"};
constexpr milliseconds kBudget(300);

Result<std::map<std::string, std::string>> read(const std::string& url, milliseconds budget = kBudget) {
  const auto endpoint = parse_endpoint(url);
  EXPECT_TRUE(endpoint.ok()) << endpoint.status().to_string();
  if (!endpoint.ok()) return endpoint.status();
  return read_metadata(*endpoint, kPaths, budget);
}

/// The status of a query to a server that would block a client without a deadline for ever.
Status status_from(const MetadataServer::Handler& handler) {
  const MetadataServer server(handler);
  const auto begin = std::chrono::steady_clock::now();
  const auto texts = read(server.url());
  // Far above the budget, for busy machines; a client without a deadline would never return.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_FALSE(texts.ok());
  return texts.ok() ? Status() : texts.status();
}

TEST(Metadata, RequestsTokenAndSkipsMissingPaths) {
  const MetadataServer server(MetadataServer::ec2_like({{"instance-type", "p5.48xlarge"}, {"instance-id", "i-0123\n"}}));
  const auto texts = read(server.url(), milliseconds(20'000));
  ASSERT_TRUE(texts.ok()) << texts.status().to_string();
  EXPECT_THAT(*texts, ElementsAre(Pair("instance-id", "i-0123"), Pair("instance-type", "p5.48xlarge")));
  EXPECT_EQ(server.requests(), 4);
}

TEST(Metadata, RefusedConnectionIsAnError) {
  std::string url;
  {
    const MetadataServer gone(MetadataServer::ec2_like({}));
    url = gone.url();
  }
  const auto texts = read(url);
  ASSERT_FALSE(texts.ok());
  EXPECT_EQ(texts.status().code(), StatusCode::system_error);
  EXPECT_THAT(texts.status().message(), HasSubstr("Connection refused"));
}

TEST(Metadata, SlowServersCostNoMoreThanTheBudget) {
  const auto silent = status_from([](const std::string&) { return MetadataServer::Reply{"", true}; });
  EXPECT_EQ(silent.code(), StatusCode::timeout) << silent.to_string();
  const auto half_open = status_from([](const std::string&) {
    return MetadataServer::Reply{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nTOK", true};
  });
  EXPECT_EQ(half_open.code(), StatusCode::timeout) << half_open.to_string();
  const auto slow = status_from([](const std::string&) {
    return MetadataServer::Reply{MetadataServer::answer(std::string(200, 'x')).bytes, false, milliseconds(20)};
  });
  EXPECT_EQ(slow.code(), StatusCode::timeout) << slow.to_string();
}

TEST(Metadata, KeepsAnswersReceivedWithinTheBudget) {
  const auto ec2_like = MetadataServer::ec2_like({{"instance-type", "p4d.24xlarge"}});
  const MetadataServer server([&](const std::string& request) {
    return request.find("instance-id") == std::string::npos ? ec2_like(request) : MetadataServer::Reply{"", true};
  });
  const auto texts = read(server.url(), milliseconds(2000));
  ASSERT_TRUE(texts.ok()) << texts.status().to_string();
  EXPECT_THAT(*texts, ElementsAre(Pair("instance-type", "p4d.24xlarge")));
}

TEST(Metadata, RefusesOversizedAndMalformedAnswers) {
  const auto endless = status_from([](const std::string&) {
    return MetadataServer::Reply{"HTTP/1.1 200 OK\r\n\r\n" + std::string(1 << 20, 'x'), true};
  });
  EXPECT_EQ(endless.code(), StatusCode::invalid_argument) << endless.to_string();
  EXPECT_THAT(endless.message(), Mentions("16384"));
  const auto announced = status_from([](const std::string&) {
    return MetadataServer::Reply{"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", true};
  });
  EXPECT_EQ(announced.code(), StatusCode::invalid_argument) << announced.to_string();
  EXPECT_THAT(announced.message(), Mentions("99999999"));
  const auto refuses = status_from([](const std::string&) { return MetadataServer::answer("", 403); });
  EXPECT_EQ(refuses.code(), StatusCode::unsupported);
  EXPECT_THAT(refuses.message(), HasSubstr("HTTP 403"));
  EXPECT_THAT(status_from([](const std::string&) { return MetadataServer::Reply{"SSH-2.0-OpenSSH_9.2\r\n\r\n"}; }).to_string(),
              Mentions("invalid_argument", "status"));
  // The token is sent back in a header: it must not inject further headers.
  EXPECT_THAT(status_from([](const std::string&) { return MetadataServer::answer("T\r\nHost: elsewhere"); }).to_string(),
              Mentions("invalid_argument", "token"));
}

TEST(Metadata, SkipsTextsWithInvalidContent) {
  const MetadataServer server(MetadataServer::ec2_like({{"instance-type", std::string("p5\x1b[31m")},
                                                        {"instance-id", std::string(400, 'i')},
                                                        {"placement/group-name", "<html>\nno"}}));
  const auto texts = read(server.url(), milliseconds(20'000));
  ASSERT_TRUE(texts.ok()) << texts.status().to_string();
  EXPECT_TRUE(texts->empty());
}

TEST(Metadata, ParsesAnswersInPieces) {
  const std::string whole = "HTTP/1.1 200 OK\r\ncontent-LENGTH: 5\r\n\r\nhello";
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto part = parse_answer(std::string_view(whole).substr(0, size), false);
    ASSERT_TRUE(part.ok()) << size << ": " << part.status().to_string();
    EXPECT_FALSE(part->has_value()) << size;
    EXPECT_FALSE(parse_answer(std::string_view(whole).substr(0, size), true).ok()) << size;
  }
  const auto answer = parse_answer(whole + "trailing", false);
  ASSERT_TRUE(answer.ok() && answer->has_value());
  EXPECT_EQ((*answer)->body, "hello");
  const auto until_end = parse_answer("HTTP/1.0 404 No\r\n\r\nhello", true);
  ASSERT_TRUE(until_end.ok() && until_end->has_value());
  EXPECT_EQ((*until_end)->status, 404);
  EXPECT_EQ((*until_end)->body, "hello");
  for (const char* bad :
       {"HTTP/2 200 OK\r\n\r\n", "HTTP/1.1 2x0 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"}) {
    EXPECT_FALSE(parse_answer(bad, true).ok()) << bad;
  }
}

TEST(Metadata, ParsesEndpoints) {
  for (const auto& [url, address, port] : {std::tuple{"http://169.254.169.254", "169.254.169.254", "80"},
                                           {"http://127.0.0.1:8080/", "127.0.0.1", "8080"},
                                           {"http://[fd00:ec2::254]", "fd00:ec2::254", "80"},
                                           {"http://[::1]:81", "::1", "81"}}) {
    const auto endpoint = parse_endpoint(url);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status().to_string();
    EXPECT_EQ(endpoint->address, address);
    EXPECT_EQ(endpoint->port, port);
  }
  for (const char* bad :
       {"", "169.254.169.254", "https://169.254.169.254", "http://", "http://metadata.internal", "http://[::1",
        "http://127.0.0.1:0", "http://127.0.0.1:65536", "http://127.0.0.1:", "http://127.0.0.1/latest"}) {
    EXPECT_FALSE(parse_endpoint(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace shoal
