#include "src/pipeline/profile.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "src/pipeline/error.h"
#include "src/pipeline/json_file.h"

namespace shoal::pipeline {
namespace {

// Larger values are no measurements, and sums of them might overflow.
constexpr double kMaxUs = 1e10;
constexpr double kMaxBytes = 1e15;
constexpr std::size_t kMaxShownText = 40;

struct NumberField {
  const char* key;
  double Unit::*number;       // a time, or
  std::int64_t Unit::*count;  // a whole number
  bool required;
};
constexpr NumberField kUnitFields[] = {
    {"forward_us", &Unit::forward_us, nullptr, true},
    {"backward_us", &Unit::backward_us, nullptr, true},
    {"parameter_bytes", nullptr, &Unit::parameter_bytes, true},
    {"buffer_bytes", nullptr, &Unit::buffer_bytes, false},
    {"stash_bytes", nullptr, &Unit::stash_bytes, true},
    {"output_bytes", nullptr, &Unit::output_bytes, true},
    {"workspace_bytes", nullptr, &Unit::workspace_bytes, false},
};

struct TextField {
  const char* key;
  std::string Profile::*text;
};
constexpr TextField kTexts[] = {
    {"model", &Profile::model},     {"dtype", &Profile::dtype}, {"device", &Profile::device},
    {"machine", &Profile::machine}, {"torch", &Profile::torch},
};

struct CountField {
  const char* key;
  std::int64_t Profile::*count;
};
constexpr CountField kCounts[] = {
    {"channels", &Profile::channels},
    {"classes", &Profile::classes},
    {"microbatch", &Profile::microbatch},
    {"threads", &Profile::threads},
};

/// A value for a message; a structure or a long text would be too long.
std::string shown(const Json& value) {
  if (value.is_structured()) return value.type_name();
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kMaxShownText) text = text.substr(0, kMaxShownText) + "...";
  return text;
}

/// A number from 0 to `most`; `where` is the file and the field.
Result<double> number_of(const Json& value, const std::string& where, double most, bool whole) {
  const double number = value.is_number() ? value.get<double>() : -1;
  const bool valid = std::isfinite(number) && number >= 0 && number <= most && (!whole || number == std::floor(number));
  if (valid) return number;
  return invalid(fmt::format("{} is {}, not a {}number from 0 to {:g}", where, shown(value), whole ? "whole " : "", most));
}

Status read_shape(const Json& value, const std::string& where, std::vector<std::int64_t>& shape) {
  if (!value.is_array()) return invalid(fmt::format("{} is {}, not an array of whole numbers", where, shown(value)));
  for (const Json& size : value) {
    const auto number = number_of(size, where, kMaxBytes, true);
    if (!number.ok()) return number.status();
    shape.push_back(static_cast<std::int64_t>(*number));
  }
  return {};
}

Status read_unit(const Json& object, const std::string& where, Unit& unit) {
  if (!object.is_object()) return invalid(fmt::format("{} is {}, not an object", where, shown(object)));
  const auto name = object.find("name");
  if (name == object.end()) return invalid(fmt::format("{}.name is missing", where));
  if (!name->is_string() || name->get_ref<const std::string&>().empty()) {
    return invalid(fmt::format("{}.name is {}, not a text", where, shown(*name)));
  }
  unit.name = name->get<std::string>();
  for (const NumberField& field : kUnitFields) {
    const std::string place = fmt::format("{}.{} (unit '{}')", where, field.key, unit.name);
    const auto value = object.find(field.key);
    if (value == object.end()) {
      if (!field.required) continue;
      return invalid(place + " is missing");
    }
    const auto number = number_of(*value, place, field.number != nullptr ? kMaxUs : kMaxBytes, field.count != nullptr);
    if (!number.ok()) return number.status();
    if (field.number != nullptr) {
      unit.*field.number = *number;
    } else {
      unit.*field.count = static_cast<std::int64_t>(*number);
    }
  }
  const auto shape = object.find("output_shape");
  if (shape == object.end()) return {};
  return read_shape(*shape, fmt::format("{}.output_shape (unit '{}')", where, unit.name), unit.output_shape);
}

Status read_units(const Json& object, std::string_view origin, std::vector<Unit>& units) {
  const auto found = object.find("units");
  if (found == object.end()) return invalid(fmt::format("{}: units is missing", origin));
  if (!found->is_array() || found->empty() || found->size() > kMaxUnits) {
    return invalid(fmt::format("{}: units is {}, not an array of 1 to {} units", origin,
                               found->is_array() ? fmt::format("an array of {}", found->size()) : shown(*found), kMaxUnits));
  }
  std::set<std::string> names;
  for (std::size_t i = 0; i < found->size(); ++i) {
    const std::string where = fmt::format("{}: units[{}]", origin, i);
    if (Status status = read_unit((*found)[i], where, units.emplace_back()); !status.ok()) return status;
    if (!names.insert(units.back().name).second) {
      return invalid(fmt::format("{}.name: a second unit has the name '{}'", where, units.back().name));
    }
  }
  return {};
}

Status differ(std::string_view origin, const std::string& field, const std::string& found, const std::string& expected) {
  return invalid(fmt::format("{} is a profile of another model: {} is {}, here {}", origin, field, found, expected));
}

}  // namespace

std::vector<std::string> Profile::unit_names() const {
  std::vector<std::string> names;
  names.reserve(units.size());
  for (const Unit& unit : units) names.push_back(unit.name);
  return names;
}

Result<Profile> parse_profile(std::string_view json, std::string_view origin) {
  const auto object = parse_object(json, origin, "profile");
  if (!object.ok()) return object.status();
  if (const auto version = object->find("version"); version != object->end() && *version != kProfileVersion) {
    return invalid(fmt::format("{}: version is {}, this program reads {}", origin, shown(*version), kProfileVersion));
  }
  Profile profile;
  for (const TextField& field : kTexts) {
    const auto value = object->find(field.key);
    if (value == object->end()) continue;
    if (!value->is_string()) return invalid(fmt::format("{}: {} is {}, not a text", origin, field.key, shown(*value)));
    profile.*field.text = value->get<std::string>();
  }
  for (const CountField& field : kCounts) {
    const auto value = object->find(field.key);
    if (value == object->end()) continue;
    const auto number = number_of(*value, fmt::format("{}: {}", origin, field.key), kMaxBytes, true);
    if (!number.ok()) return number.status();
    profile.*field.count = static_cast<std::int64_t>(*number);
  }
  if (Status status = read_units(*object, origin, profile.units); !status.ok()) return status;
  return profile;
}

Result<Profile> read_profile(const std::string& path) {
  const auto text = read_text(path, "profile");
  if (!text.ok()) return text.status();
  return parse_profile(*text, path);
}

std::string to_json(const Profile& profile) {
  Json object{{"version", kProfileVersion}};
  for (const TextField& field : kTexts) object[field.key] = profile.*field.text;
  for (const CountField& field : kCounts) object[field.key] = profile.*field.count;
  object["units"] = Json::array();
  for (const Unit& unit : profile.units) {
    Json each{{"name", unit.name}};
    for (const NumberField& field : kUnitFields) {
      if (field.number != nullptr) {
        each[field.key] = unit.*field.number;
      } else {
        each[field.key] = unit.*field.count;
      }
    }
    each["output_shape"] = unit.output_shape;
    object["units"].push_back(std::move(each));
  }
  return object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

namespace {

/// What the unit returns for one image: "64 x 16 x 16".
std::string shape_of_image(const Unit& unit) {
  std::string text;
  for (std::size_t i = 1; i < unit.output_shape.size(); ++i) {
    text += fmt::format("{}{}", text.empty() ? "" : " x ", unit.output_shape[i]);
  }
  return text;
}

}  // namespace

Status check_model(const Profile& profile, std::string_view origin, const Profile& expected) {
  if (profile.model != expected.model) {
    return differ(origin, "model", fmt::format("'{}'", profile.model), fmt::format("'{}'", expected.model));
  }
  for (const CountField& field : {kCounts[0], kCounts[1]}) {
    if (profile.*field.count != 0 && expected.*field.count != 0 && profile.*field.count != expected.*field.count) {
      return differ(origin, field.key, fmt::format("{}", profile.*field.count), fmt::format("{}", expected.*field.count));
    }
  }
  if (profile.units.size() != expected.units.size()) {
    return differ(origin, "the number of units", fmt::format("{}", profile.units.size()),
                  fmt::format("{}", expected.units.size()));
  }
  for (std::size_t i = 0; i < profile.units.size(); ++i) {
    const Unit& found = profile.units[i];
    const Unit& wanted = expected.units[i];
    if (found.name != wanted.name) {
      return differ(origin, fmt::format("units[{}].name", i), fmt::format("'{}'", found.name),
                    fmt::format("'{}'", wanted.name));
    }
    if (found.parameter_bytes != wanted.parameter_bytes) {
      return differ(origin, fmt::format("units[{}].parameter_bytes (unit '{}')", i, found.name),
                    fmt::format("{}", found.parameter_bytes), fmt::format("{}", wanted.parameter_bytes));
    }
    const auto [of_found, of_wanted] = std::pair(shape_of_image(found), shape_of_image(wanted));
    if (!found.output_shape.empty() && !wanted.output_shape.empty() && of_found != of_wanted) {
      return differ(origin, fmt::format("units[{}].output_shape (unit '{}') for an image", i, found.name), of_found, of_wanted);
    }
  }
  return {};
}

std::vector<std::string> differences(const Profile& profile, std::string_view origin, const Profile& expected) {
  std::vector<std::string> found;
  const auto note = [&](const char* field, const std::string& there, const std::string& here) {
    if (there.empty() || here.empty() || there == here) return;
    found.push_back(fmt::format("{} was measured with {} {}, here it is {}", origin, field, there, here));
  };
  const auto text = [](std::int64_t count) { return count == 0 ? std::string() : fmt::format("{}", count); };
  note("microbatch", text(profile.microbatch), text(expected.microbatch));
  note("threads", text(profile.threads), text(expected.threads));
  for (const TextField& field : kTexts) {
    if (field.text != &Profile::model) note(field.key, profile.*field.text, expected.*field.text);
  }
  return found;
}

}  // namespace shoal::pipeline
