#include "tools/virtual_device/core/device_model.h"

#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>

#include "tools/virtual_device/core/json.h"

namespace vd {
namespace {

TEST(DeviceModel, EveryFileIsReadableAndSaysWhereItsValuesComeFrom) {
  const std::vector<std::string> ids = ListDeviceModels(VD_DEVICES);
  EXPECT_GE(ids.size(), 7u);
  for (const std::string& id : ids) {
    const DeviceModel m = ReadDeviceModel(std::string(VD_DEVICES) + "/" + id + ".json");
    EXPECT_EQ(m.id, id);
    EXPECT_GT(m.multiprocessors, 0) << id;
    EXPECT_GT(m.total_memory_bytes, uint64_t{4} << 30) << id;
    EXPECT_GE(m.shared_per_block_optin_bytes, m.shared_per_block_bytes) << id;
    EXPECT_LE(m.shared_per_block_optin_bytes + m.reserved_shared_per_block_bytes, m.shared_per_multiprocessor_bytes) << id;
    EXPECT_TRUE(m.sources.count("*") == 1 && m.sources.count("total_memory_bytes") == 1) << id;
  }
}

TEST(DeviceModel, H100IsTheDriversFigure) {
  const DeviceModel m = ReadDeviceModel(std::string(VD_DEVICES) + "/h100-80gb.json");
  EXPECT_EQ(m.total_memory_bytes, 85028896768u);
  EXPECT_EQ(m.major * 10 + m.minor, 90);
  EXPECT_TRUE(m.clusters);
}

std::string ErrorOf(const std::string& text) {
  const std::string file = testing::TempDir() + "/device.json";
  std::ofstream(file) << text;
  try {
    ReadDeviceModel(file);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(DeviceModel, BadFilesAreOneSentence) {
  EXPECT_NE(ErrorOf("").find("at byte 0"), std::string::npos);
  EXPECT_NE(ErrorOf("{\"name\": \"x\"").find("at byte"), std::string::npos);
  EXPECT_NE(ErrorOf("{\"name\": 3}").find("\"name\""), std::string::npos);
  EXPECT_NE(ErrorOf("{\"name\": \"x\", \"compute_capability\": \"nine\"}").find("compute_capability"), std::string::npos);
  EXPECT_THROW(ReadDeviceModel("/nowhere/at/all.json"), std::runtime_error);
}

TEST(Json, RoundTripsAndRefusesDeepNesting) {
  EXPECT_EQ(ParseJson(JsonQuote("a\"b\\c\n")).text, "a\"b\\c\n");
  EXPECT_EQ(ParseJson("[1, 2.5, true, null, {\"k\": []}]").items.size(), 5u);
  EXPECT_THROW(ParseJson(std::string(1000, '[')), std::runtime_error);
  EXPECT_THROW(ParseJson("{} {}"), std::runtime_error);
}

}  // namespace
}  // namespace vd
