#include "src/diagnosis/signature.h"

#include <fmt/format.h>

namespace shoal {

std::string to_string(const CallSignature& s) {
  if (static_cast<int>(s.kind) >= kCollectiveKindCount)
    return fmt::format("an unknown collective (kind {})", static_cast<int>(s.kind));
  if (s.kind == CollectiveKind::barrier) return "barrier";
  std::string text = fmt::format("{}{} {}", to_string(s.kind), s.has_counts != 0 ? "_v" : "", to_string(s.type));
  const bool own_count = s.has_counts != 0 && s.kind == CollectiveKind::all_to_all;  // which ranks need not agree on
  if (!own_count) text += fmt::format(" x {}", s.count);
  if (reduces(s.kind)) text += fmt::format(" {}", to_string(s.op));
  if (!has_root(s.kind)) return text;
  const bool leaves_root = s.kind == CollectiveKind::broadcast || s.kind == CollectiveKind::scatter;
  return text + fmt::format(" {} rank {}", leaves_root ? "from" : "to", s.root);
}

namespace {
// The receives of between_two, modulo 2^32: in the bits that hold the hash of the counts in other calls.
constexpr std::uint64_t kReceives = 0xFFFFFFFF;
}  // namespace

CallSignature between_two(CallSignature signature, std::uint64_t sends, std::uint64_t receives) {
  signature.count = sends;
  signature.plan_fingerprint = (signature.plan_fingerprint & ~kReceives) | (receives & kReceives);
  return signature;
}

std::string pair_difference(const CallSignature& mine, const std::string& my_name, const CallSignature& theirs,
                            const std::string& their_name) {
  if (mine.kind != CollectiveKind::all_to_all || mine.has_counts == 0) return {};
  if (!(between_two(mine, 0, 0) == between_two(theirs, 0, 0))) return {};
  std::string text;
  const auto compare = [&](const CallSignature& from, const std::string& sender, const CallSignature& to,
                           const std::string& receiver) {
    const std::uint64_t wanted = to.plan_fingerprint & kReceives;
    if ((from.count & kReceives) == wanted) return;
    text += fmt::format("{}{} sends {} elements to {}, which expects {}", text.empty() ? "" : "; ", sender, from.count,
                        receiver, wanted);
  };
  compare(mine, my_name, theirs, their_name);
  compare(theirs, their_name, mine, my_name);
  return text;
}

std::string difference(const CallSignature& a, const CallSignature& b) {
  std::string fields;
  const auto note = [&](bool differs, const char* name) {
    if (differs) fields += (fields.empty() ? "" : ", ") + std::string(name);
  };
  note(a.kind != b.kind, "collective");
  note(a.count != b.count, "count");
  // The lower half of the fingerprint is the hash of the counts.
  const auto counts = [](const CallSignature& s) {
    return s.has_counts != 0 ? static_cast<std::uint32_t>(s.plan_fingerprint) : 0;
  };
  note(a.kind == b.kind && (a.has_counts != b.has_counts || counts(a) != counts(b)), "counts");
  note(a.type != b.type, "type");
  note(a.op != b.op, "op");
  note(a.root != b.root, "root");
  return fields.empty() ? "algorithm or earlier calls" : fields;
}

}  // namespace shoal
