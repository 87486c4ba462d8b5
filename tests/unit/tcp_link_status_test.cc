// How a TCP link ends, and what it says about its peer.
#include <gtest/gtest.h>

#include <cerrno>

#include "transports/tcp/link_status.h"

namespace shoal::tcp {
namespace {

using std::chrono::seconds;

const LinkStatus::Clock::time_point kNow{seconds(1000)};

LinkStatus open_status() {
  LinkStatus status(3, "10.0.0.3:4711");
  status.open();
  return status;
}

std::string message_of(LinkStatus& status) {
  status.end_by_peer();
  EXPECT_EQ(status.status().code(), StatusCode::peer_failed);
  return status.status().message();
}

TEST(TcpLinkStatus, NamesTheSystemsFirstError) {
  LinkStatus status = open_status();
  status.note_error(ECONNRESET);
  status.note_error(EPIPE);
  EXPECT_EQ(message_of(status), "rank 3 closed the connection (10.0.0.3:4711): Connection reset by peer");
}

TEST(TcpLinkStatus, NamesWhatThePeerSent) {
  LinkStatus status = open_status();
  status.note_error(ECONNRESET);
  status.note_trouble("sent a corrupt tile header");
  status.note_peer_lost("Connection refused", kNow);
  EXPECT_EQ(message_of(status),
            "rank 3 (10.0.0.3:4711) sent a corrupt tile header, and cannot be reached again: Connection refused");
}

TEST(TcpLinkStatus, NamesTheSilenceOfTheHost) {
  LinkStatus status = open_status();
  status.note_silence(kNow - seconds(12));
  status.note_silence(kNow - seconds(1));
  status.note_peer_lost("Connection timed out", kNow);
  EXPECT_EQ(message_of(status),
            "rank 3 (10.0.0.3:4711) has not answered for 12.0 s, and cannot be reached again: Connection timed out");
}

TEST(TcpLinkStatus, ForgetsTroubleThatWasRepaired) {
  LinkStatus status = open_status();
  status.note_error(ECONNRESET);
  status.note_trouble("sent a corrupt tile header");
  status.note_silence(kNow - seconds(12));
  status.note_repair();
  EXPECT_EQ(message_of(status), "rank 3 closed the connection (10.0.0.3:4711)");
}

TEST(TcpLinkStatus, KeepsItsFirstReason) {
  LinkStatus status = open_status();
  EXPECT_FALSE(status.closing());
  status.end(Status(StatusCode::aborted, "this rank closed the link"));
  status.end_by_peer();
  EXPECT_TRUE(status.closing() && status.has_ended());
  EXPECT_EQ(status.status().code(), StatusCode::aborted);
}

TEST(TcpLinkStatus, DistinguishesPeersThatLeftFromLostOnes) {
  LinkStatus left = open_status();
  left.note_peer_left();
  left.start_closing(kNow);
  EXPECT_TRUE(left.peer_is_gone());
  EXPECT_FALSE(left.peer_has_failed());
  LinkStatus lost = open_status();
  lost.note_peer_lost("Connection refused", kNow);
  EXPECT_TRUE(lost.peer_is_gone());
  EXPECT_TRUE(lost.peer_has_failed());
}

}  // namespace
}  // namespace shoal::tcp
