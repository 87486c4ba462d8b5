#include "src/schedule/program.h"

namespace shoal {

std::string to_string(const Collective& collective) {
  std::string text(to_string(collective.kind));
  if (collective.kind == CollectiveKind::barrier) return text;
  if (!collective.counts.empty()) text += "_v";
  text += " " + std::string(to_string(collective.type)) + " x " + std::to_string(collective.count);
  if (reduces(collective.kind)) text += " " + std::string(to_string(collective.op));
  if (!has_root(collective.kind)) return text;
  const bool leaves_root = collective.kind == CollectiveKind::broadcast || collective.kind == CollectiveKind::scatter;
  return text + (leaves_root ? " from rank " : " to rank ") + std::to_string(collective.root);
}

}  // namespace shoal
