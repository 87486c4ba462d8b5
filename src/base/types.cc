#include <shoal/types.h>

#include <array>
#include <span>
#include <string>

namespace shoal {
namespace {

struct TypeInfo {
  std::string_view name;
  std::string_view alias;  // nccl-tests' name
  bool floating;
};

constexpr std::array<TypeInfo, kDataTypeCount> kTypes{{
    {"float32", "float", true},
    {"float64", "double", true},
    {"float16", "half", true},
    {"bfloat16", "bf16", true},
    {"int8", "char", false},
    {"int16", "short", false},
    {"int32", "int", false},
    {"int64", "long", false},
    {"uint8", "byte", false},
    {"uint16", "ushort", false},
    {"uint32", "uint", false},
    {"uint64", "ulong", false},
    {"float8_e4m3fn", "f8e4m3", true},
    {"float8_e5m2", "f8e5m2", true},
}};
constexpr std::array<std::string_view, kReduceOpCount> kOps{"sum", "prod", "min", "max", "avg", "band", "bor", "bxor"};
constexpr std::array<std::string_view, kCollectiveKindCount + 2> kKinds{"all_reduce",     "broadcast", "all_gather", "barrier",
                                                                        "reduce_scatter", "reduce",    "gather",     "scatter",
                                                                        "all_to_all",     "send",      "receive"};

template <typename Names, typename NameOf>
Status unknown(std::string_view what, std::string_view given, const Names& names, NameOf name_of) {
  std::string message = "unknown " + std::string(what) + " '" + std::string(given) + "'; known:";
  for (const auto& name : names) message += " " + std::string(name_of(name));
  return {StatusCode::invalid_argument, message};
}

template <typename Enum, typename Names>
Result<Enum> parse(std::string_view what, std::string_view given, const Names& names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == given) return static_cast<Enum>(i);
  }
  return unknown(what, given, names, [](std::string_view name) { return name; });
}

}  // namespace

bool is_floating(DataType type) noexcept {
  const auto i = static_cast<std::size_t>(type);
  return i < kTypes.size() && kTypes[i].floating;
}

bool supports(DataType type, ReduceOp op) noexcept {
  if (size_of(type) == 0 || static_cast<int>(op) >= kReduceOpCount) return false;
  const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  return !(bitwise && is_floating(type));
}

std::string_view to_string(DataType type) noexcept {
  const auto i = static_cast<std::size_t>(type);
  return i < kTypes.size() ? kTypes[i].name : "?";
}

std::string_view to_string(ReduceOp op) noexcept {
  const auto i = static_cast<std::size_t>(op);
  return i < kOps.size() ? kOps[i] : "?";
}

std::string_view to_string(CollectiveKind kind) noexcept {
  const auto i = static_cast<std::size_t>(kind);
  return i < kKinds.size() ? kKinds[i] : "?";
}

Result<DataType> parse_data_type(std::string_view name) {
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].name == name || kTypes[i].alias == name) return static_cast<DataType>(i);
  }
  return unknown("data type", name, kTypes, [](const TypeInfo& info) { return info.name; });
}

Result<ReduceOp> parse_reduce_op(std::string_view name) { return parse<ReduceOp>("reduction", name, kOps); }

Result<CollectiveKind> parse_collective(std::string_view name) {
  return parse<CollectiveKind>("collective", name, std::span(kKinds).first<kCollectiveKindCount>());
}

}  // namespace shoal
