// The analytic column and the table of layers, from a recorded list of operators.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tools/analysis/reconcile.h"
#include "tools/foreign/text.h"
#include "tools/foreign/text_events.h"

namespace vramledger {
namespace {

// tests/golden/convolution.events; the sizes below are worked out by hand.
std::string Golden() {
  std::ostringstream text;
  text << std::ifstream(std::string(VRAMLEDGER_GOLDEN) + "/convolution.events").rdbuf();
  return text.str();
}

Reconciliation Read(const std::string& text) {
  const auto list = ReadTextEvents(text);
  EXPECT_TRUE(list.ok()) << list.status();
  auto r = Reconcile(EventInput::FromList("test", *list), std::nullopt);
  EXPECT_TRUE(r.ok()) << r.status();
  return *std::move(r);
}

nlohmann::ordered_json Row(const nlohmann::ordered_json& json, std::string_view category) {
  for (const auto& row : json["rows"]) {
    if (row["category"] == category) return row;
  }
  return nullptr;
}

TEST(ReconcileOperators, AnalyticBesideTraced) {
  const nlohmann::ordered_json json = ReconcileJson(Read(Golden()));
  // The output of the ReLU, the indices of the pooling, the loss; the pooled values are not saved.
  const uint64_t analytic = 131072 + 65536 + 4;
  ASSERT_EQ(json["activation_checks"].size(), 1u);
  const auto& check = json["activation_checks"][0];
  EXPECT_EQ(check["operators"], 5);
  EXPECT_EQ(check["analytic_bytes"], analytic);
  EXPECT_EQ(check["traced_bytes"], analytic + 4096);
  EXPECT_EQ(check["not_covered"], (nlohmann::ordered_json{{"mine::shift_", 1}}));
  const auto row = Row(json, "activation");
  EXPECT_EQ(row["analytic_bytes"], analytic);
  // From the analytic bytes to the category's own peak, each difference by name.
  int64_t sum = static_cast<int64_t>(analytic);
  for (const auto& d : row["analytic_differences"]) sum += d["bytes"].get<int64_t>();
  EXPECT_EQ(sum, row["requested_bytes"].get<int64_t>());
  EXPECT_EQ(row["analytic_differences"][0]["name"], "alive in Net.act, beyond what its operators save");
  EXPECT_FALSE(json.contains("layers"));
}

TEST(ReconcileOperators, LayerTable) {
  const Reconciliation r = Read(Golden());
  const auto layers = ReconcileJson(r, true)["layers"];
  ASSERT_EQ(layers.size(), 3u);
  EXPECT_EQ(layers[0]["formula"], "(32 + 2 x 1 - 3) + 1 = 32");
  EXPECT_EQ(layers[0]["textbook_bytes"], 131072);
  EXPECT_EQ(layers[0]["analytic_bytes"], 0);
  EXPECT_EQ(layers[0]["traced_bytes"], 0);
  EXPECT_EQ(layers[1]["analytic_bytes"], 131072);
  EXPECT_EQ(layers[1]["traced_bytes"], 131072 + 4096);
  EXPECT_EQ(layers[2]["formula"], "(32 - 2) / 2 + 1 = 16");
  EXPECT_EQ(layers[2]["textbook_bytes"], 32768);
  EXPECT_EQ(layers[2]["analytic_bytes"], 65536);
  EXPECT_EQ(layers[2]["traced_bytes"], 65536);
  const std::string text = ReconcileText(r, false, true);
  EXPECT_NE(text.find("Net.conv"), std::string::npos);
  EXPECT_NE(text.find("= all layers"), std::string::npos);
  EXPECT_EQ(ReconcileText(r, false).find("= all layers"), std::string::npos);
}

// A trace of before has no list: the formulas' column stands, and nothing is checked.
TEST(ReconcileOperators, WithoutList) {
  std::string text = Golden();
  const size_t at = text.find(",\"operators\":{\"1\"");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, text.find('\n', at) - at, "}");
  const nlohmann::ordered_json json = ReconcileJson(Read(text), true);
  EXPECT_TRUE(json["activation_checks"].empty());
  EXPECT_TRUE(Row(json, "activation")["analytic_bytes"].is_null());
  EXPECT_TRUE(json["layers"][1]["analytic_bytes"].is_null());
}

TEST(ReconcileOperators, DamagedListIsNamed) {
  std::string text = Golden();
  ReplaceAll(&text, "[131072,0]", "[131072,9]");
  const nlohmann::ordered_json json = ReconcileJson(Read(text));
  EXPECT_TRUE(Row(json, "activation")["analytic_bytes"].is_null());
  EXPECT_NE(Row(json, "activation")["note"].get<std::string>().find("\"storages\" of a list of operators"),
            std::string::npos);
}

}  // namespace
}  // namespace vramledger
