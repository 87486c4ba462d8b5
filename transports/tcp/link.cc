#include "transports/tcp/link.h"

#include <utility>

#include "transports/tcp/reactor.h"

namespace shoal::tcp {
namespace {

// How often the close notice is offered to a kernel that is out of memory.
constexpr int kCloseNoticeTries = 8;

}  // namespace

TcpLink::TcpLink(std::shared_ptr<Reactor> reactor, int peer, std::string peer_address, const LinkShape& shape)
    : reactor_(std::move(reactor)),
      sockets_(*this, *reactor_, shape, LinkStatus(peer, std::move(peer_address))),
      control_(sockets_),
      acknowledger_(sockets_, control_),
      sender_(sockets_),
      receiver_(sockets_, acknowledger_),
      flush_(sockets_, control_, acknowledger_, sender_.window()),
      repair_(sockets_, sender_, control_, acknowledger_, flush_) {
  reactor_->enrol(*this);
}

Result<std::unique_ptr<TcpLink>> TcpLink::make(std::shared_ptr<Reactor> reactor, int peer, std::string peer_address,
                                               std::vector<Connection> connections, const LinkShape& shape) {
  auto link = std::make_unique<TcpLink>(std::move(reactor), peer, peer_address, shape);
  if (Status opened = link->open(std::move(peer_address), std::move(connections)); !opened.ok()) return opened;
  return link;
}

Status TcpLink::open(std::string peer_address, std::vector<Connection> connections) {
  if (Status opened = sockets_.open(std::move(connections)); !opened.ok()) return opened;
  const auto window_bytes = sender_.open();
  if (!window_bytes.ok()) return window_bytes.status();
  acknowledger_.set_window(*window_bytes);
  sockets_.status().set_address(std::move(peer_address));
  sockets_.status().open();
  const auto added = reactor_->add(*this);
  return added.ok() ? Status() : added.status();
}

void TcpLink::request(bool peer_too) {
  if (!connected() && !sockets_.status().has_ended()) reactor_->request(*this, peer_too);
}

TcpLink::~TcpLink() {
  if (connected()) reactor_->flush_links();
  close(Status(StatusCode::aborted, "this rank closed the link"));
  reactor_->remove(*this);
}

void TcpLink::keep_copies() {
  sender_.copy_all_lent();
  flush_.excuse_tiles();
}

bool TcpLink::receive_control() {
  const std::uint64_t sent = sent_tiles();
  const auto received = control_.receive([this](const ControlRecord& record) {
    if (record.kind == ControlRecord::Kind::close_notice) {
      sockets_.on_peer_left();
    } else if (record.kind == ControlRecord::Kind::flush) {
      acknowledger_.acknowledge_each();
    } else if (record.socket < sockets_.for_tiles().size()) {
      sender_.on_acknowledged(record.socket, record.position);
    }
  });
  if (received == ControlChannel::Received::end) return true;
  if (received == ControlChannel::Received::nothing) return false;
  return sender_.consume_refusal() || sockets_.status().closing() || sent_tiles() != sent;
}

bool TcpLink::send_more(LinkSocket& socket) {
  if (sockets_.status().closing() || socket.down) return false;
  socket.blocked = false;
  if (!socket.control) return sender_.send_more(socket);
  control_.flush();
  acknowledger_.send();
  return false;
}

bool TcpLink::watch() {
  if (sockets_.status().has_ended()) return false;
  if (sockets_.status().closing()) return repair_.watch_closing();
  bool moved = false;
  for (LinkSocket& socket : sockets_.all()) {
    // This may send what an event is about to report. That event will then find nothing to do, so the return value must show
    // the move now, before the caller sleeps.
    if (socket.blocked) moved |= send_more(socket);
  }
  return repair_.watch_silence() || moved;
}

void TcpLink::save_memory(bool saves) {
  if (sockets_.status().closing()) return;
  acknowledger_.save_memory(saves);
  acknowledger_.send_rest();
}

void TcpLink::give_back() noexcept {
  sender_.give_back();
  for (LinkSocket& socket : sockets_.for_tiles()) socket.ring.give_back();
  acknowledger_.save_memory(true);
}

void TcpLink::on_drop(LinkSocket& socket) {
  if (socket.control) control_.reset();
  if (sender_.window().unpulled() > 0) reactor_->defer(sender_);  // another socket may take the tiles that waited for this one
}

void TcpLink::close(Status reason) {
  if (!sockets_.status().closing() && reactor_->in_owner()) {
    acknowledger_.send();  // a peer that leaves as well need not wait for the acknowledgement
    if (control_.has_room()) {
      control_.add({ControlRecord::Kind::close_notice, 0, 0});
      // Without the close notice the peer takes the end for a lost connection. The kernel may be out of memory for a moment.
      for (int i = 0; i < kCloseNoticeTries && !control_.is_flushed(); ++i) control_.flush();
    }
  }
  sockets_.end(std::move(reason));
}

std::size_t TcpLink::memory_bytes() const noexcept { return sender_.window().memory_bytes() + sockets_.memory_bytes(); }

}  // namespace shoal::tcp
