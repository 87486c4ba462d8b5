// `shoal env`: every setting with its value and the origin of the value.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdlib>
#include <string>

#include "src/cli/commands.h"
#include "src/settings/settings.h"

namespace shoal {
namespace {

std::string shown(const std::string& text) { return text.empty() ? "-" : text; }

void print_settings() {
  fmt::print("{:<24} {:<10} {:<24} {:<12} {}\n", "name", "default", "value", "origin", "what");
  for (const Setting& one : settings()) {
    const char* given = std::getenv(one.name);
    const bool from_environment = given != nullptr && *given != '\0';
    fmt::print("{:<24} {:<10} {:<24} {:<12} {}\n", one.name, shown(one.fallback),
               one.secret && from_environment ? "(set)" : shown(setting(one.name)),
               from_environment ? "environment" : "default", one.help);
  }
}

}  // namespace

void add_env_command(CLI::App& app, int*) {
  auto* command = app.add_subcommand("env", "Lists every setting: default, value, origin of the value, and meaning");
  command->callback(print_settings);
}

}  // namespace shoal
