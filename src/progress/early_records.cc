#include "src/progress/early_records.h"

#include <span>

#include <fmt/format.h>

namespace shoal {

using Kind = ControlPlane::Message::Kind;

bool EarlyRecords::take_room(std::size_t bytes) noexcept {
  const std::size_t needed = kRecordBytes + bytes;
  if (!has_room(needed)) return false;
  used_bytes_ += needed;
  return true;
}

void EarlyRecords::keep(const ControlPlane::Message& message) {
  const bool closes = message.kind == Kind::abort;
  if (!closes && message.kind != Kind::farewell && message.kind != Kind::waits) return;
  const std::size_t bytes = kRecordBytes + message.payload.size() + message.status.message().size();
  if (const auto known = early_.find(message.group); known != early_.end() && !known->second.abort.ok()) return;
  if (!has_room(bytes)) {
    // A wait is sent again. But without a close notice or an abort this rank would wait until its deadline.
    if (message.kind != Kind::waits) refuse(message.rank, message.group);
    return;
  }
  Early& early = early_[message.group];
  std::size_t before = 0;  // of the message that this one replaces
  if (closes) {
    early.abort = message.status;
  } else {
    ControlPlane::Message& kept = (message.kind == Kind::farewell ? early.left : early.waits)[message.rank];
    if (!kept.payload.empty()) before = kRecordBytes + kept.payload.size();
    kept = message;
  }
  early.bytes += bytes - before;
  used_bytes_ += bytes - before;
}

void EarlyRecords::refuse(int rank, const GroupName& name) {
  Early& early = early_[name];
  if (!early.abort.ok()) return;
  early.abort = {StatusCode::unsupported,
                 fmt::format("rank {} of the job has sent more than rank {} keeps ({} bytes) for groups that rank {} has not "
                             "made yet, the last of them communicator {:x}; make the groups on all ranks before calls",
                             rank, rank_, room_bytes_, rank_, name.short_form())};
  if (control_ != nullptr) control_->send_abort(name, std::span(&rank, 1), early.abort);
  if (++refused_ > kMostRefused && overflow_.ok()) overflow_ = early.abort;
}

void EarlyRecords::pass_to(ProgressClient& client) {
  const auto kept = early_.find(client.group().name);
  if (kept == early_.end()) return;
  for (const auto& [rank, message] : kept->second.left) client.on_control(message);
  for (const auto& [rank, message] : kept->second.waits) client.on_control(message);
  if (!kept->second.abort.ok()) client.close(kept->second.abort);
  used_bytes_ -= kept->second.bytes;
  early_.erase(kept);
}

}  // namespace shoal
