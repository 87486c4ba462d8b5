// The profile file: what it may hold, and what its errors name.

#include "src/pipeline/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/pipeline/exact.h"
#include "src/pipeline/names.h"
#include "tests/mentions.h"
#include "tests/unit/pipeline_support.h"

namespace shoal::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Mentions;

std::string unit_text(const std::string& name, const std::string& field = "", const std::string& value = "") {
  std::string text = "{\"name\": \"" + name + "\"";
  for (const char* key : {"forward_us", "backward_us", "parameter_bytes", "stash_bytes", "output_bytes"}) {
    if (key == field && value.empty()) continue;
    text += ", \"" + std::string(key) + "\": " + (key == field ? value : "7");
  }
  return text + "}";
}

Status refused(const std::string& json) {
  const auto found = parse_profile(json, "p.json");
  EXPECT_FALSE(found.ok()) << json;
  EXPECT_EQ(found.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(found.status().message(), Mentions("p.json"));
  return found.status();
}

TEST(PipelineProfile, NeedsUnitsOnly) {
  const auto found =
      parse_profile(R"({"units": [)" + unit_text("a") + "," + unit_text("b", "forward_us", "2.5") + "]}", "p.json");
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  ASSERT_THAT(found->unit_names(), ElementsAre("a", "b"));
  EXPECT_EQ(found->units[1].forward_us, 2.5);
  EXPECT_EQ(found->units[1].stash_bytes, 7);
  EXPECT_EQ(found->microbatch, 0);
}

TEST(PipelineProfile, AcceptsWholeNumbersWithAPoint) {
  const auto found = parse_profile(R"({"units": [)" + unit_text("a", "stash_bytes", "64000.0") + "]}", "p.json");
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(found->units[0].stash_bytes, 64000);
}

TEST(PipelineProfile, GivesBackWhatWasWritten) {
  Profile profile = worked_example();
  profile.model = "six";
  profile.device = "cpu";
  profile.microbatch = 4;
  profile.units[0].output_shape = {4, 64, 32, 32};
  profile.units[0].buffer_bytes = 12;
  profile.units[0].workspace_bytes = 34;
  const std::string text = to_json(profile);
  const auto found = parse_profile(text, "p.json");
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(to_json(*found), text);
  EXPECT_EQ(found->model, "six");
  EXPECT_EQ(found->units[0].output_shape, profile.units[0].output_shape);
}

TEST(PipelineProfile, NamesFileAndFieldOfBadNumbers) {
  for (const char* field : {"forward_us", "backward_us", "parameter_bytes", "stash_bytes", "output_bytes"}) {
    for (const char* value : {"-1", "\"7\"", "null", "1e300"}) {
      EXPECT_THAT(refused(R"({"units": [)" + unit_text("a") + "," + unit_text("bad", field, value) + "]}").message(),
                  Mentions("units[1]", field, "'bad'"));
    }
    EXPECT_THAT(refused(R"({"units": [)" + unit_text("bad", field) + "]}").message(),
                Mentions("units[0]", field, "'bad'", "missing"));
  }
  EXPECT_THAT(refused(R"({"units": [)" + unit_text("bad", "stash_bytes", "1.5") + "]}").message(),
              Mentions("stash_bytes", "1.5"));
}

TEST(PipelineProfile, NamesTheFieldAtWhichJsonBreaks) {
  EXPECT_THAT(refused("").message(), Mentions("JSON"));
  EXPECT_THAT(refused("[]").message(), Mentions("JSON object"));
  EXPECT_THAT(refused(R"({"units": [)" + unit_text("a", "backward_us", "NaN") + "]}").message(), Mentions("'backward_us'"));
  EXPECT_THAT(refused(R"({"units": [)" + unit_text("a", "backward_us", "1e999") + "]}").message(), Mentions("'backward_us'"));
  EXPECT_THAT(refused(R"({"units": [)" + unit_text("a")).message(), Mentions("'output_bytes'"));
  EXPECT_THAT(refused(R"({"units": )" + std::string(5000, '[')).message(), Mentions("deeper"));
  EXPECT_THAT(refused(R"({"units": )" + std::string(5000, '[') + std::string(5000, ']') + "}").message(), Mentions("deeper"));
}

TEST(PipelineProfile, NamesOtherFields) {
  EXPECT_THAT(refused("{}").message(), Mentions("units", "missing"));
  EXPECT_THAT(refused(R"({"units": []})").message(), Mentions("units"));
  EXPECT_THAT(refused(R"({"units": 3})").message(), Mentions("units", "3"));
  EXPECT_THAT(refused(R"({"units": [7]})").message(), Mentions("units[0]"));
  EXPECT_THAT(refused(R"({"units": [{}]})").message(), Mentions("units[0].name"));
  EXPECT_THAT(refused(R"({"units": [{"name": 7}]})").message(), Mentions("units[0].name", "7"));
  EXPECT_THAT(refused(R"({"units": [)" + unit_text("a") + "," + unit_text("a") + "]}").message(), Mentions("units[1]", "'a'"));
  EXPECT_THAT(refused(R"({"version": 2, "units": [)" + unit_text("a") + "]}").message(), Mentions("version", "2"));
  EXPECT_THAT(refused(R"({"microbatch": -4, "units": [)" + unit_text("a") + "]}").message(), Mentions("microbatch", "-4"));
  EXPECT_THAT(refused(R"({"model": 4, "units": [)" + unit_text("a") + "]}").message(), Mentions("model", "4"));
}

TEST(PipelineProfile, AMissingFileIsASystemError) {
  const auto found = read_profile("/no/such/profile.json");
  EXPECT_EQ(found.status().code(), StatusCode::system_error);
  EXPECT_THAT(found.status().message(), Mentions("/no/such/profile.json"));
}

TEST(PipelineProfile, AnotherModelIsRefused) {
  const Profile here = worked_example();
  EXPECT_TRUE(check_model(here, "p.json", here).ok());
  const auto refused_change = [&](auto change) {
    Profile other = here;
    change(other);
    const Status status = check_model(other, "p.json", here);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_THAT(status.message(), Mentions("p.json"));
    return status.message();
  };
  EXPECT_THAT(refused_change([](Profile& p) { p.model = "other"; }), Mentions("model", "'other'"));
  EXPECT_THAT(refused_change([](Profile& p) { p.units.pop_back(); }), Mentions("units", "5", "6"));
  EXPECT_THAT(refused_change([](Profile& p) { p.units[2].name = "x"; }), Mentions("units[2].name", "'x'", "'unit2'"));
  EXPECT_THAT(refused_change([](Profile& p) { p.units[2].parameter_bytes = 4; }),
              Mentions("units[2].parameter_bytes", "'unit2'", "4", "72000"));
}

TEST(PipelineProfile, OtherImagesAreRefused) {
  Profile here = worked_example();
  Profile other = here;
  here.units[1].output_shape = {2, 64, 16, 16};
  EXPECT_TRUE(check_model(other, "p.json", here).ok()) << "the file has no shapes";
  other.units[1].output_shape = {8, 64, 16, 16};
  EXPECT_TRUE(check_model(other, "p.json", here).ok()) << "another microbatch";
  other.units[1].output_shape = {2, 64, 14, 14};
  const Status status = check_model(other, "p.json", here);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_THAT(status.message(), Mentions("p.json", "units[1].output_shape", "'unit1'", "64 x 14 x 14", "64 x 16 x 16"));
}

TEST(PipelineProfile, OtherDifferencesAreTold) {
  Profile here = worked_example();
  here.microbatch = 4;
  here.threads = 2;
  here.device = "cpu";
  Profile other = here;
  EXPECT_THAT(differences(other, "p.json", here), IsEmpty());
  other.microbatch = 8;
  other.device = "cuda";
  other.threads = 0;  // not told
  EXPECT_THAT(differences(other, "p.json", here),
              ElementsAre(Mentions("p.json", "microbatch", "8", "4"), Mentions("p.json", "device", "cuda", "cpu")));
}

TEST(PipelineProfile, SumsThatDoNotFitAreRefused) {
  Profile profile = worked_example();
  profile.units.resize(1);
  profile.units[0].stash_bytes = 1'000'000'000'000'000;
  PartitionRequest request;
  request.rules.shape = shape_of(ScheduleKind::simple, 1, 1'000'000);
  const auto found = partition(profile, request);
  EXPECT_EQ(found.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(found.status().message(), Mentions("1e+21 bytes"));
}

TEST(PipelineExact, ProductsOfWideNumbers) {
  const Wide all = ~Wide{0};
  EXPECT_EQ(product(all, all), (Exact{all - 1, 1}));
  EXPECT_EQ(product(Wide{1} << 100, Wide{3} << 90), (Exact{Wide{3} << 62, 0}));
  EXPECT_EQ(sum({0, all}, {1, 1}), (Exact{2, 0}));
  EXPECT_LT((Exact{1, all}), (Exact{2, 0}));
  EXPECT_EQ(millionths(12.3), 12'300'000);
}

TEST(PipelineNames, NearestComesFirst) {
  const std::vector<std::string> known{"conv1", "conv10", "head", "conv2"};
  EXPECT_EQ(nearest_names("conv11", known), "'conv1', 'conv10', 'conv2'");
  EXPECT_EQ(nearest_names("hed", known).substr(0, 6), "'head'");
}

}  // namespace
}  // namespace shoal::pipeline
