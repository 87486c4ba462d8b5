// Messages between two ranks, in the order of a stream: pieces of a fixed size go through pinned memory by the host's engine.
//
// A call issues the pieces of all its messages in turns, so that each message has a piece in flight before any has its second.
// A piece takes the next chunk of the stream's lane, when the chunk's last use has ended. An exchange holds no more messages
// than a lane has chunks: so all first pieces are in flight at once on both sides, then all second ones. Therefore no ranks
// wait in a circle, whatever the order in which they name their messages.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "src/cuda/device_group.h"
#include "src/cuda/device_scope.h"
#include "src/cuda/device_words.h"

namespace shoal::cuda {
namespace {

/// Bytes of a chunk in front of its data, so that the data is as aligned as the chunk.
constexpr std::size_t kHeaderBytes = 64;
static_assert(sizeof(MailHeader) <= kHeaderBytes);
/// Tag of the messages of an all_to_all_v, on the group's own communicator.
constexpr int kBlockTag = 0;
/// Keys whose last call is remembered before those of ended calls are dropped.
constexpr std::size_t kManyKeys = 256;

bool is_send(const Request& message) { return message.kind == CollectiveKind::send; }
std::size_t bytes_of(const Request& message) { return message.count * size_of(message.type); }
/// Of a send: only read.
std::byte* buffer_of(const Request& message) {
  return static_cast<std::byte*>(is_send(message) ? const_cast<void*>(message.input) : message.output);
}

}  // namespace

/// Messages of one sender, receiver and tag, one behind the other, as the receiver may receive them in separate calls.
struct DeviceGroup::Chain {
  std::vector<const Request*> messages;
  std::size_t message = 0;  ///< the next piece belongs to this one
  std::size_t piece = 0;

  [[nodiscard]] bool is_over() const { return message == messages.size(); }
};

/// Puts all pieces of `messages`, of at most kLaneChunks different senders, receivers and tags, on the stream.
Status DeviceGroup::post(const std::shared_ptr<StreamCall>& call, Stream stream, Communicator& via,
                         std::span<const Request> messages) {
  std::vector<std::pair<MessageKey, Chain>> chains;
  for (const Request& message : messages) {
    const MessageKey key(is_send(message), message.peer, message.tag);
    auto known = std::find_if(chains.begin(), chains.end(), [&](const auto& each) { return each.first == key; });
    if (known == chains.end()) known = chains.insert(chains.end(), {key, Chain{}});
    known->second.messages.push_back(&message);
  }
  Lane& lane = lane_for(stream);
  if (lane.last != nullptr && lane.stream != stream) {
    if (Status status = api_.wait(stream, lane.last->event); !status.ok()) return status;
  }
  lane.stream = stream;
  lane.last = call;
  lane.receives.clear();
  for (bool any = true; any;) {
    any = false;
    for (auto& [key, chain] : chains) {
      if (chain.is_over()) continue;
      any = true;
      if (Status status = post_piece(*call, stream, via, lane, chain); !status.ok()) return status;
    }
  }
  return finish_receives(stream, lane, lane.used);
}

Status DeviceGroup::post_piece(StreamCall& call, Stream stream, Communicator& via, Lane& lane, Chain& chain) {
  const Request& message = *chain.messages[chain.message];
  const std::size_t room = chunk_bytes_ - kHeaderBytes;
  const std::size_t begin = chain.piece * room;
  const std::size_t bytes = std::min(room, bytes_of(message) - begin);
  const std::uint64_t number = lane.used++;
  const std::size_t at = number % kLaneChunks;
  if (number >= kLaneChunks) {
    if (Status status = finish_receives(stream, lane, number - kLaneChunks + 1); !status.ok()) return status;
    const auto before = static_cast<std::uint32_t>(number - kLaneChunks + 1);
    const FlagOperation wait{FlagOperation::Kind::wait, chunk_done(lane, at), before};
    if (Status status = api_.flags(stream, {&wait, 1}); !status.ok()) return status;
  }
  std::byte* chunk = lane.chunks + at * chunk_bytes_;
  if (is_send(message) && bytes != 0) {
    if (Status status = api_.copy(chunk + kHeaderBytes, buffer_of(message) + begin, bytes, stream); !status.ok()) return status;
  }
  Tile& tile = call.tiles.emplace_back();
  tile.call = &call;
  tile.via = &via;
  tile.message = chunk;
  tile.what = is_send(message) ? Request::send(chunk, kHeaderBytes + bytes, DataType::uint8, message.peer, message.tag)
                               : Request::recv(chunk, kHeaderBytes + bytes, DataType::uint8, message.peer, message.tag);
  tile.header = {bytes_of(message), chain.piece, static_cast<std::uint64_t>(message.type)};
  tile.flag = chunk_done(lane, at);
  tile.value = static_cast<std::uint32_t>(number + 1);
  if (!is_send(message)) lane.receives.push_back({number, bytes == 0 ? nullptr : buffer_of(message) + begin, bytes});
  ++chain.piece;
  if (begin + bytes == bytes_of(message)) {
    ++chain.message;
    chain.piece = 0;
  }
  return api_.call_host(stream, &DeviceGroup::tile_arrived, &tile);
}

/// Waits for the receives in chunks below `until`, and copies them to their buffers.
Status DeviceGroup::finish_receives(Stream stream, Lane& lane, std::uint64_t until) {
  while (!lane.receives.empty() && lane.receives.front().chunk < until) {
    const Lane::Receive receive = lane.receives.front();
    lane.receives.pop_front();
    const std::size_t at = receive.chunk % kLaneChunks;
    const FlagOperation wait{FlagOperation::Kind::wait, chunk_done(lane, at), static_cast<std::uint32_t>(receive.chunk + 1)};
    if (Status status = api_.flags(stream, {&wait, 1}); !status.ok()) return status;
    if (receive.bytes == 0) continue;
    const std::byte* chunk = lane.chunks + at * chunk_bytes_ + kHeaderBytes;
    if (Status status = api_.copy(receive.target, chunk, receive.bytes, stream); !status.ok()) return status;
  }
  return {};
}

std::uint32_t* DeviceGroup::chunk_done(const Lane& lane, std::size_t chunk) const {
  return &words_->chunk_done[&lane - lanes_.data()][chunk].value;
}

/// The lane of the stream, else an unused one, else the one that was used least recently: then streams wait for each other.
DeviceGroup::Lane& DeviceGroup::lane_for(Stream stream) {
  Lane* found = nullptr;
  for (Lane& lane : lanes_) {
    if (lane.last == nullptr || lane.stream == stream) {
      if (found == nullptr || lane.stream == stream) found = &lane;
    }
  }
  if (found == nullptr) {
    found = &*std::min_element(lanes_.begin(), lanes_.end(), [](const Lane& a, const Lane& b) { return a.turn < b.turn; });
  }
  found->turn = ++lane_turns_;
  return *found;
}

/// Orders messages of one sender, receiver and tag on different streams: their pieces must not mix.
Status DeviceGroup::follow_messages(const std::shared_ptr<StreamCall>& call, std::span<const Request> messages, Stream stream) {
  if (last_of_key_.size() > kManyKeys)
    std::erase_if(last_of_key_, [](const auto& each) { return each.second.second.expired(); });
  for (const Request& message : messages) {
    auto& [last_stream, last] = last_of_key_[{is_send(message), message.peer, message.tag}];
    const std::shared_ptr<StreamCall> before = last.lock();
    if (before != nullptr && before != call && last_stream != stream) {
      if (Status status = api_.wait(stream, before->event); !status.ok()) return status;
    }
    last_stream = stream;
    last = call;
  }
  return {};
}

Status DeviceGroup::check_messages(std::span<const Request> messages, Stream stream, const Timeout& timeout) const {
  if (messages.empty()) return {StatusCode::invalid_argument, "exchange: no message was given"};
  if (messages.size() > kLaneChunks)
    return {StatusCode::invalid_argument,
            fmt::format("exchange: {} messages; one exchange takes at most {}, split them", messages.size(), kLaneChunks)};
  CallOptions options;
  options.timeout = timeout;
  for (const Request& message : messages) {
    Status status = internal::check_arguments(message, options, communicator_.rank(), communicator_.size());
    if (!status.ok()) return status;
    if (message.peer == kAnySource)
      return {StatusCode::invalid_argument, "recv: the sender must be named: pieces of several senders would mix"};
    if (message.count == 0) continue;
    status = check_buffer("the buffer", buffer_of(message), bytes_of(message));
    if (!status.ok()) return {status.code(), fmt::format("{}: {}", internal::call_name(message.kind), status.message())};
  }
  return check_stream("exchange", stream);
}

Result<std::shared_ptr<StreamCall>> DeviceGroup::exchange(std::span<const Request> messages, Stream stream, Timeout timeout) {
  const std::scoped_lock calling(calls_mutex_);
  const OnDevice here(api_, device_);
  if (Status status = check_open(); !status.ok()) return status;
  if (Status status = check_messages(messages, stream, timeout); !status.ok()) return status;
  const Request& first = messages.front();
  Signature signature;
  signature.kind = first.kind;
  signature.count = first.count;
  signature.type = first.type;
  signature.root = static_cast<std::uint32_t>(first.peer);
  auto call = make_call(signature, timeout);
  call->sequence = message_sequence_++;
  call->messages = messages.size();
  Status enqueued = take_event(*call);
  if (enqueued.ok()) enqueued = follow_messages(call, messages, stream);
  if (enqueued.ok()) enqueued = post(call, stream, *mail_, messages);
  if (Status status = finish_call(call, stream, enqueued); !status.ok()) return status;
  return call;
}

/// A message to each rank and one from each: only the two ranks of a pair know how many pieces theirs has. All ranks go
/// through their peers in the same steps, as many at a time as a lane takes.
Status DeviceGroup::all_to_all_v(Enqueuing& e) {
  const auto ranks = static_cast<std::size_t>(communicator_.size());
  std::vector<std::uintptr_t> from(ranks);
  std::vector<std::uintptr_t> to(ranks);
  std::uintptr_t next_from = e.input;
  std::uintptr_t next_to = e.output;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    from[rank] = std::exchange(next_from, next_from + e.what.counts[rank] * e.element_bytes);
    to[rank] = std::exchange(next_to, next_to + e.what.counts[ranks + rank] * e.element_bytes);
  }
  if (const std::size_t bytes = e.what.counts[e.rank] * e.element_bytes; bytes != 0) {
    const Status status =
        api_.copy(reinterpret_cast<void*>(to[e.rank]), reinterpret_cast<const void*>(from[e.rank]), bytes, e.stream);
    if (!status.ok()) return status;
  }
  std::vector<Request> messages;
  for (std::size_t step = 1; step < ranks; ++step) {
    const std::size_t target = (e.rank + step) % ranks;
    const std::size_t source = (e.rank + ranks - step) % ranks;
    messages.push_back(Request::send(reinterpret_cast<const void*>(from[target]), e.what.counts[target], e.what.type,
                                     static_cast<int>(target), kBlockTag));
    messages.push_back(Request::recv(reinterpret_cast<void*>(to[source]), e.what.counts[ranks + source], e.what.type,
                                     static_cast<int>(source), kBlockTag));
    if (messages.size() < kLaneChunks && step + 1 < ranks) continue;
    if (Status status = post(e.call, e.stream, *all_, messages); !status.ok()) return status;
    messages.clear();
  }
  return {};
}

}  // namespace shoal::cuda
