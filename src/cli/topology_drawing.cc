#include "src/cli/topology_drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace shoal {
namespace {

constexpr std::size_t kMaxDrawnRanks = 64;
constexpr std::size_t kMaxDrawnNics = 4;
constexpr int kWidth = 1040;
constexpr int kRow = 46;
constexpr int kPanelHead = 30;
constexpr int kTop = 96;

// The picture has a background of its own, so that it does not depend on the page around it. It uses no CSS variables, because
// not every viewer has them.
constexpr const char* kStyle = R"svg(<style>
svg{font-family:sans-serif;font-size:12px}
.paper{fill:#fff}.panel{fill:none;stroke:#5f5f5f}text{fill:#1b1b1b}.faint{fill:#5f5f5f}
.gpu{fill:#dcebd3;stroke:#1b1b1b;stroke-width:2}.nic{fill:#d6e4f5;stroke:#1b1b1b}.core{fill:#efe6d2;stroke:#1b1b1b}
.near{stroke:#1b1b1b;stroke-width:1.5}.far{stroke:#1b1b1b;stroke-dasharray:5 4}.hatch{stroke:#1b1b1b}
@media (prefers-color-scheme:dark){.paper{fill:#16181c}.panel{stroke:#a9a9a9}text{fill:#ececec}.faint{fill:#a9a9a9}
.gpu{fill:#2c4a24;stroke:#ececec}.nic{fill:#233f60;stroke:#ececec}
.core{fill:#4d4127;stroke:#ececec}.near,.far,.hatch{stroke:#ececec}}
@media print{.paper,.gpu,.nic,.core{fill:#fff;stroke:#000}.paper{stroke:none}
text,.faint{fill:#000}.near,.far,.hatch{stroke:#000}}
</style>
<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>
)svg";

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<') {
      safe += "&lt;";
    } else if (c == '&') {
      safe += "&amp;";
    } else if (c == '"') {
      safe += "&quot;";
    } else {
      safe += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return safe;
}

void put_text(std::string& svg, int x, int y, const std::string& words, const char* style = "") {
  fmt::format_to(std::back_inserter(svg), "<text x=\"{}\" y=\"{}\"{}>{}</text>\n", x, y, style, escaped(words));
}

void put_box(std::string& svg, const char* kind, int x, int y, int width, int height, int radius) {
  fmt::format_to(std::back_inserter(svg), "<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\"/>\n", kind,
                 x, y, width, height, radius);
}

void draw_nics(std::string& svg, const Hardware& hardware, const RankPlace& place, int x, int y) {
  const std::size_t shown = std::min(place.nics.size(), kMaxDrawnNics);
  for (std::size_t i = 0; i < shown; ++i) {
    const Nic& nic = hardware.nics[static_cast<std::size_t>(place.nics[i])];
    const int left = x + static_cast<int>(i) * 84;
    put_box(svg, "nic", left, y, 80, 26, 12);
    put_text(svg, left + 40, y + 17, nic.name.size() > 12 ? nic.name.substr(0, 11) + "…" : nic.name,
             " text-anchor=\"middle\" font-size=\"11\"");
  }
  if (place.nics.size() > shown) {
    put_text(svg, x + static_cast<int>(shown) * 84 + 2, y + 17, fmt::format("+{}", place.nics.size() - shown),
             " class=\"faint\"");
  }
  if (place.nics.empty()) put_text(svg, x, y + 17, "no NIC", " class=\"faint\"");
}

void draw_cores(std::string& svg, const Hardware& hardware, const RankPlace& place, int x, int y) {
  const auto cut = [](const std::vector<int>& cores, std::size_t most) {
    const std::string all = format_cores(cores);
    return all.size() <= most ? all : all.substr(0, most - 1) + "…";
  };
  put_box(svg, "core", x, y, 190, 26, 0);
  put_text(svg, x + 6, y + 17, place.cores.empty() ? "any" : cut(place.cores, 28), " font-size=\"11\"");
  if (place.progress_cores.empty()) return;
  put_box(svg, "core", x + 194, y, 84, 26, 0);
  fmt::format_to(std::back_inserter(svg), "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"26\" fill=\"url(#hatch)\"/>\n",
                 x + 194, y);
  put_text(svg, x + 210, y + 17, cut(place.progress_cores, 11), " font-size=\"11\"");
  const int node = hardware.node_of_core(place.progress_cores.front());
  if (node != home_of(hardware, place)) put_text(svg, x + 282, y + 17, fmt::format("node {}", node), " class=\"faint\"");
}

void draw_rank(std::string& svg, const Hardware& hardware, const RankPlace& place, std::size_t rank, int y) {
  put_text(svg, 34, y + 17, fmt::format("rank {}", rank), " font-weight=\"bold\"");
  if (place.gpu >= 0) {
    put_box(svg, "gpu", 100, y, 150, 26, 0);
    put_text(svg, 175, y + 17, fmt::format("GPU {}", hardware.gpus[static_cast<std::size_t>(place.gpu)].place.address),
             " text-anchor=\"middle\"");
    const bool near = place.why == "same PCIe switch" || place.why == "same PCIe root";
    fmt::format_to(std::back_inserter(svg),
                   "<line class=\"{}\" x1=\"251\" y1=\"{}\" x2=\"289\" y2=\"{}\"><title>{}</title></line>\n",
                   near ? "near" : "far", y + 13, y + 13, escaped(place.why));
  } else {
    put_text(svg, 100, y + 17, "no GPU", " class=\"faint\"");
  }
  draw_nics(svg, hardware, place, 290, y);
  draw_cores(svg, hardware, place, 670, y);
}

void draw_legend(std::string& svg, int y) {
  put_box(svg, "gpu", 34, y, 40, 16, 0);
  put_text(svg, 80, y + 12, "GPU");
  put_box(svg, "nic", 124, y, 40, 16, 8);
  put_text(svg, 170, y + 12, "NIC");
  svg += fmt::format("<line class=\"near\" x1=\"214\" y1=\"{0}\" x2=\"254\" y2=\"{0}\"/>\n", y + 8);
  put_text(svg, 260, y + 12, "same PCIe switch or root");
  svg += fmt::format("<line class=\"far\" x1=\"424\" y1=\"{0}\" x2=\"464\" y2=\"{0}\"/>\n", y + 8);
  put_text(svg, 470, y + 12, "farther");
  put_box(svg, "core", 534, y, 40, 16, 0);
  put_text(svg, 580, y + 12, "cores of the caller");
  put_box(svg, "core", 714, y, 40, 16, 0);
  svg += fmt::format("<rect x=\"714\" y=\"{}\" width=\"12\" height=\"16\" fill=\"url(#hatch)\"/>\n", y);
  put_text(svg, 760, y + 12, "core of the progress thread");
}

}  // namespace

int home_of(const Hardware& hardware, const RankPlace& place) {
  return place.cores.empty() ? place.numa_node : hardware.node_of_core(place.cores.front());
}

std::string nic_names(const Hardware& hardware, const std::vector<int>& nics) {
  std::string names;
  for (const int nic : nics) names += (names.empty() ? "" : ", ") + hardware.nics[static_cast<std::size_t>(nic)].name;
  return names.empty() ? "none" : names;
}

std::string describe_type(const FoundMachine& machine) {
  std::string words =
      machine.type.empty() ? "a machine of unknown type" : fmt::format("{} ({})", machine.type, machine.type_origin);
  if (!machine.instance_id.empty()) words += ", " + machine.instance_id;
  const auto add = [&](const char* path, const char* name) {
    const auto found = machine.metadata.find(path);
    if (found != machine.metadata.end()) words += fmt::format(", {} {}", name, found->second);
  };
  add("placement/availability-zone-id", "zone");
  add("placement/group-name", "placement group");
  add("placement/partition-number", "partition");
  return words;
}

std::string draw_machine(const FoundMachine& machine, const std::vector<RankPlace>& places) {
  const Hardware& hardware = machine.hardware;
  const std::size_t shown = std::min(places.size(), kMaxDrawnRanks);
  std::vector<int> homes;
  for (std::size_t i = 0; i < shown; ++i) homes.push_back(home_of(hardware, places[i]));
  std::vector<int> nodes(homes);
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());

  std::string panels;
  int y = kTop;
  for (const int node : nodes) {
    const int rows = static_cast<int>(std::count(homes.begin(), homes.end(), node));
    put_box(panels, "panel", 20, y, kWidth - 40, kPanelHead + rows * kRow, 6);
    std::string cores;
    for (const NumaNode& each : hardware.numa_nodes) {
      if (each.id == node) cores = ": cores " + format_cores(each.cores);
    }
    put_text(panels, 34, y + 20, node < 0 ? "unknown NUMA node" : fmt::format("NUMA node {}{}", node, cores),
             " class=\"faint\"");
    int row = y + kPanelHead + 4;
    for (std::size_t rank = 0; rank < shown; ++rank) {
      if (homes[rank] != node) continue;
      draw_rank(panels, hardware, places[rank], rank, row);
      row += kRow;
    }
    y += kPanelHead + rows * kRow + 14;
  }
  if (places.size() > shown) {
    put_text(panels, 34, y + 14, fmt::format("and {} more ranks", places.size() - shown), " class=\"faint\"");
    y += 24;
  }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "aria-label=\"GPU, NICs and cores of each rank\">\n{2}<rect class=\"paper\" width=\"{0}\" height=\"{1}\"/>\n",
      kWidth, y + 8, kStyle);
  put_text(svg, 20, 30, describe_type(machine), " font-size=\"17\" font-weight=\"bold\"");
  draw_legend(svg, 54);
  return svg + panels + "</svg>\n";
}

}  // namespace shoal
