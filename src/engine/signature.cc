#include "src/engine/signature.h"

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

std::string difference(const CallSignature& a, const CallSignature& b) {
  std::string fields;
  const auto note = [&](bool differs, const char* name) {
    if (differs) fields += (fields.empty() ? "" : ", ") + std::string(name);
  };
  note(a.kind != b.kind, "collective");
  note(a.count != b.count, "count");
  // The lower half of the fingerprint is that of the counts.
  const auto counts = [](const CallSignature& s) {
    return s.has_counts != 0 ? static_cast<std::uint32_t>(s.plan_fingerprint) : 0;
  };
  note(a.kind == b.kind && (a.has_counts != b.has_counts || counts(a) != counts(b)), "counts");
  note(a.type != b.type, "type");
  note(a.op != b.op, "op");
  note(a.root != b.root, "root");
  return fields.empty() ? "algorithm" : fields;
}

}  // namespace shoal
