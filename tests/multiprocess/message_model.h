// Random messages, and a model of what must be received.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <shoal/communicator.h>

namespace shoal::testing {

/// Messages to one receiver, the same description on every rank: one of each entry of `senders`, in that order.
struct ModelMessages {
  std::uint64_t id = 0;  ///< seed of the bytes
  DataType type = DataType::int32;
  std::size_t count = 0;
  int receiver = 0;
  std::vector<int> senders;
  int tag = 0;
  bool any_source = false;
  bool async = false;

  [[nodiscard]] std::string text() const {
    return fmt::format("{} x {} from {} to {}, tag {}{}{}", to_string(type), count, fmt::join(senders, ","), receiver, tag,
                       any_source ? ", received from any source" : "", async ? ", async" : "");
  }
};

/// Random messages among `ranks` ranks. Messages received from any source use the tag kDirectTags + `own_tag`, which no other
/// call of the job may use; the others use tags below kDirectTags.
inline constexpr int kDirectTags = 3;
inline ModelMessages random_messages(std::mt19937_64& random, int ranks, std::size_t max_count, int own_tag) {
  const auto pick = [&](std::uint64_t low, std::uint64_t high) { return low + random() % (high - low + 1); };
  const auto rank = [&] { return static_cast<int>(pick(0, static_cast<std::uint64_t>(ranks) - 1)); };
  ModelMessages messages;
  messages.id = random();
  messages.type = static_cast<DataType>(pick(0, kDataTypeCount - 1));
  messages.count = pick(0, 3) == 0 ? pick(0, max_count) : pick(0, 40);
  messages.receiver = rank();
  messages.senders.resize(pick(1, 5));
  for (int& sender : messages.senders) sender = rank();
  messages.any_source = pick(0, 1) == 0;
  messages.tag = messages.any_source ? kDirectTags + own_tag : static_cast<int>(pick(0, kDirectTags - 1));
  // A rank that sends to itself must not block; a blocking recv does not return the source.
  bool to_itself = false;
  for (const int sender : messages.senders) to_itself |= sender == messages.receiver;
  messages.async = pick(0, 1) == 0 || to_itself || messages.any_source;
  return messages;
}

/// The part of one rank: its calls, their buffers, and the check of the received bytes. Thread rule: one thread.
class MessagePart {
 public:
  MessagePart(const ModelMessages& messages, int rank) : messages_(messages), rank_(rank) {}

  /// Makes this rank's calls.
  Status post(Communicator& c) {
    std::vector<int> sent(static_cast<std::size_t>(c.size()));
    buffers_.resize(2 * messages_.senders.size());
    for (std::size_t k = 0; k < messages_.senders.size(); ++k) {
      const int sender = messages_.senders[k];
      const int number = sent[static_cast<std::size_t>(sender)]++;
      if (rank_ == messages_.receiver) {
        std::vector<std::byte>& buffer = buffers_[2 * k];
        buffer.assign(bytes(), std::byte{0xAB});
        const int from = messages_.any_source ? kAnySource : sender;
        if (Status status = call(c, false, buffer, from, receives_); !status.ok()) return status;
      }
      if (rank_ == sender) {
        std::vector<std::byte>& buffer = buffers_[2 * k + 1] = content(sender, number);
        if (Status status = call(c, true, buffer, messages_.receiver, sends_); !status.ok()) return status;
      }
    }
    return {};
  }

  /// Waits for all calls. Empty if all messages arrived unchanged, else what is wrong.
  std::string finish() {
    for (auto* works : {&receives_, &sends_}) {
      for (Work& work : *works) {
        if (const Status status = work.wait(); !status.ok()) return status.to_string();
      }
    }
    if (rank_ != messages_.receiver) return {};
    std::vector<int> received(1 +
                              static_cast<std::size_t>(*std::max_element(messages_.senders.begin(), messages_.senders.end())));
    std::vector<int> wanted = received;
    for (const int sender : messages_.senders) ++wanted[static_cast<std::size_t>(sender)];
    for (std::size_t k = 0; k < messages_.senders.size(); ++k) {
      const int from = messages_.async ? receives_[k].source() : messages_.senders[k];
      if (!messages_.any_source && from != messages_.senders[k]) return fmt::format("message {} is from rank {}", k, from);
      if (from < 0 || static_cast<std::size_t>(from) >= received.size()) return fmt::format("source {}", from);
      // Messages of different ranks may arrive in any order; those of one rank stay in order.
      if (buffers_[2 * k] != content(from, received[static_cast<std::size_t>(from)]++))
        return fmt::format("message {}, from rank {}, is wrong", k, from);
    }
    return received == wanted ? "" : "some rank's messages are missing";
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return messages_.count * size_of(messages_.type); }

  [[nodiscard]] std::vector<std::byte> content(int sender, int number) const {
    std::mt19937_64 random(messages_.id + 1000 * static_cast<std::uint64_t>(sender) + static_cast<std::uint64_t>(number));
    std::vector<std::byte> made(bytes());
    for (std::size_t i = 0; i < made.size(); i += 8) {
      const std::uint64_t word = random();
      std::memcpy(made.data() + i, &word, std::min<std::size_t>(8, made.size() - i));
    }
    return made;
  }

  Status call(Communicator& c, bool send, std::vector<std::byte>& buffer, int peer, std::vector<Work>& works) {
    const auto& [id, type, count, receiver, senders, tag, any, async] = messages_;
    if (!async) return send ? c.send(buffer.data(), count, type, peer, tag) : c.recv(buffer.data(), count, type, peer, tag);
    auto work =
        send ? c.send_async(buffer.data(), count, type, peer, tag) : c.recv_async(buffer.data(), count, type, peer, tag);
    if (!work.ok()) return work.status();
    works.push_back(*std::move(work));
    return {};
  }

  const ModelMessages& messages_;
  int rank_;
  std::vector<std::vector<std::byte>> buffers_;  ///< for each entry of senders: the received bytes, the sent bytes
  std::vector<Work> receives_;
  std::vector<Work> sends_;
};

}  // namespace shoal::testing
