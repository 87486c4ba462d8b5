#include "src/progress/overlay/message.h"

#include <algorithm>

namespace shoal {
namespace {

void append_group(ByteWriter& bytes, const GroupName& group) {
  bytes.put(group.key);
  bytes.put(group.check);
}

GroupName read_group(ByteReader& bytes) noexcept {
  GroupName group;
  group.key = bytes.get<std::uint64_t>();
  group.check = bytes.get<std::uint32_t>();
  if (group.check >= GroupName::kCheckLimit) bytes.fail();
  return group;
}

void append_payload(ByteWriter& bytes, const std::vector<std::byte>& payload) {
  bytes.put_sized(std::span(payload).first(std::min(payload.size(), kMostNoticePayload)));
}

void append(ByteWriter& bytes, const Notice& notice) {
  bytes.put(static_cast<std::uint32_t>(notice.rank));
  bytes.put(notice.number);
  append_group(bytes, notice.group);
  bytes.put(notice.kind);
  append_payload(bytes, notice.payload);
}

void append(ByteWriter& bytes, const RankFacts& facts) {
  bytes.put(facts.kind);
  append_group(bytes, facts.group);
  append_payload(bytes, facts.payload);
  facts.ranks.append_to(bytes);
}

void append(ByteWriter& bytes, const RoutedMessage& message) {
  bytes.put(static_cast<std::uint32_t>(message.to));
  bytes.put(static_cast<std::uint32_t>(message.from));
  append_group(bytes, message.group);
  bytes.put(message.kind);
  append_payload(bytes, message.payload);
}

std::optional<OverlayMessage> read_notice(ByteReader& bytes, int ranks) {
  Notice notice;
  notice.rank = bytes.get_below(ranks);
  notice.number = bytes.get<std::uint64_t>();
  notice.group = read_group(bytes);
  notice.kind = bytes.get<std::uint32_t>();
  notice.payload = bytes.get_sized(kMostNoticePayload);
  return notice;
}

std::optional<OverlayMessage> read_facts(ByteReader& bytes, int ranks) {
  RankFacts facts;
  facts.kind = bytes.get<RankFacts::Kind>();
  if (facts.kind < RankFacts::Kind::death || facts.kind > RankFacts::Kind::farewell) return std::nullopt;
  facts.group = read_group(bytes);
  facts.payload = bytes.get_sized(kMostNoticePayload);
  auto set = RankRuns::read_from(bytes, ranks);
  if (!set) return std::nullopt;
  facts.ranks = *std::move(set);
  return facts;
}

std::optional<OverlayMessage> read_routed(ByteReader& bytes, int ranks) {
  RoutedMessage message;
  message.to = bytes.get_below(ranks);
  message.from = bytes.get_below(ranks);
  message.group = read_group(bytes);
  message.kind = bytes.get<std::uint32_t>();
  message.payload = bytes.get_sized(kMostNoticePayload);
  return message;
}

/// The first byte of a message: its place in OverlayMessage.
std::optional<OverlayMessage> read_message(std::uint8_t kind, ByteReader& bytes, int ranks) {
  switch (kind) {
    case 0:
      return read_notice(bytes, ranks);
    case 1:
      return read_facts(bytes, ranks);
    case 2:
      return read_routed(bytes, ranks);
    default:
      return std::nullopt;
  }
}

}  // namespace

std::vector<std::byte> to_bytes(const OverlayMessage& message) {
  ByteWriter bytes;
  bytes.put(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& each) { append(bytes, each); }, message);
  return bytes.take();
}

std::optional<OverlayMessage> parse_overlay(std::span<const std::byte> bytes, int ranks) {
  if (bytes.size() > kMostOverlayBytes) return std::nullopt;
  ByteReader reader(bytes);
  const auto kind = reader.get<std::uint8_t>();
  auto message = read_message(kind, reader, ranks);
  return reader.ok() && reader.left() == 0 ? std::move(message) : std::nullopt;
}

}  // namespace shoal
