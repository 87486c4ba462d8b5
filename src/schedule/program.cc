#include "src/schedule/program.h"

namespace shoal {

std::string to_string(const Collective& collective) {
  std::string text(to_string(collective.kind));
  if (collective.kind == CollectiveKind::barrier) return text;
  text += " " + std::string(to_string(collective.type)) + " x " + std::to_string(collective.count);
  if (collective.kind == CollectiveKind::all_reduce) text += " " + std::string(to_string(collective.op));
  if (collective.kind == CollectiveKind::broadcast) text += " from rank " + std::to_string(collective.root);
  return text;
}

}  // namespace shoal
