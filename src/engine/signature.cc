#include "src/engine/signature.h"

#include <fmt/format.h>

namespace shoal {

std::string to_string(const CallSignature& s) {
  switch (s.kind) {
    case CollectiveKind::barrier:
      return "barrier";
    case CollectiveKind::broadcast:
      return fmt::format("broadcast {} x {} from rank {}", to_string(s.type), s.count, s.root);
    case CollectiveKind::all_gather:
      return fmt::format("all_gather {} x {}", to_string(s.type), s.count);
    case CollectiveKind::all_reduce:
      return fmt::format("all_reduce {} x {} {}", to_string(s.type), s.count, to_string(s.op));
  }
  return fmt::format("an unknown collective (kind {})", static_cast<int>(s.kind));
}

std::string difference(const CallSignature& a, const CallSignature& b) {
  std::string fields;
  const auto note = [&](bool differs, const char* name) {
    if (differs) fields += (fields.empty() ? "" : ", ") + std::string(name);
  };
  note(a.kind != b.kind, "collective");
  note(a.count != b.count, "count");
  note(a.type != b.type, "type");
  note(a.op != b.op, "op");
  note(a.root != b.root, "root");
  return fields.empty() ? "algorithm" : fields;
}

}  // namespace shoal
