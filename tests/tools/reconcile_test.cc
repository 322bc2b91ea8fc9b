#include "tools/analysis/reconcile.h"

#include <gtest/gtest.h>

#include "tests/tools/advise_cases.h"

namespace vramledger {
namespace {

using testing::Events;
using testing::Input;

TEST(Reconcile, RowsAndDifferencesClose) {
  const auto r = Reconcile(Input(4), std::nullopt);
  ASSERT_TRUE(r.ok()) << r.status();
  const nlohmann::ordered_json j = ReconcileJson(*r);
  EXPECT_EQ(j["schema"], "vramledger.reconcile/1");
  EXPECT_EQ(j["unexplained_bytes"], 0);
  bool parameter = false, gradient = false;
  uint64_t column = 0;
  for (const auto& row : j["rows"]) {
    if (!row["textbook_bytes"].is_null()) column += row["textbook_bytes"].get<uint64_t>();
    if (row["category"] == "parameter") {
      parameter = true;
      EXPECT_EQ(row["textbook_bytes"], 20971520);
      EXPECT_EQ(row["analytic_bytes"], 20971520);
      EXPECT_EQ(row["requested_bytes"], 20971520);
    }
    if (row["category"] == "gradient") {
      gradient = true;
      EXPECT_EQ(row["textbook_bytes"], 20971520);
      EXPECT_EQ(row["requested_bytes"], 20971520);
    }
    if (row["category"] == "optimizer_state") {
      EXPECT_EQ(row["textbook_bytes"], 2 * 20971520);
    }
    // The named differences lead from the textbook to the rounded bytes.
    if (row["textbook_bytes"].is_null()) continue;
    int64_t sum = row["textbook_bytes"].get<int64_t>();
    for (const auto& d : row["differences"]) sum += d["bytes"].get<int64_t>();
    EXPECT_EQ(sum, row["rounded_bytes"].get<int64_t>()) << row;
  }
  EXPECT_TRUE(parameter && gradient);
  // Parameters, gradients, and twice as much for the optimizer.
  EXPECT_EQ(column, 4 * 20971520u);
  EXPECT_EQ(j["textbook_total_bytes"], column);
  EXPECT_NE(ReconcileText(*r, false).find("= textbook's total"), std::string::npos);
}

// A share of a textbook without activations would mislead.
TEST(Reconcile, NoShareWithoutTheActivations) {
  const auto r = Reconcile(Input(4), std::nullopt);
  ASSERT_TRUE(r.ok());
  const std::string text = ReconcileText(*r, false);
  EXPECT_EQ(text.find("of the textbook's"), std::string::npos) << text;
  EXPECT_NE(text.find("without activations"), std::string::npos);
  EXPECT_NE(text.find("parameters + gradients + optimizer states + buffers, without activations"), std::string::npos) << text;
}

TEST(Reconcile, WithoutHooksItSaysSo) {
  const auto r =
      Reconcile(Events("meta {\"allocator\":{\"mode\":\"plugin\"}}\nphase forward\nalloc a 1M\n"), std::nullopt);
  ASSERT_TRUE(r.ok());
  EXPECT_NE(ReconcileText(*r, false).find("Recorded without hooks"), std::string::npos);
}

// (in + 2 pad - kernel) / stride + 1, for convolutions described in the metadata.
TEST(Reconcile, TextbookConvolutions) {
  const auto list = ReadTextEvents(
      "vramledger events 1\nmeta "
      "{\"batch_size\":2,\"models\":[{\"name\":\"Net\",\"class\":\"Net\",\"parameters\":[{\"name\":\"c.weight\","
      "\"numel\":9408,\"element_bytes\":4}],"
      "\"layers\":[{\"name\":\"c\",\"class\":\"Conv2d\",\"in_shape\":[2,3,224,224],\"out_shape\":[2,64,112,112],"
      "\"kernel\":[7,7],\"stride\":[2,2],\"padding\":[3,3],\"element_bytes\":4}]}]}\n"
      "phase forward\nalloc a 1M\n");
  ASSERT_TRUE(list.ok());
  const auto r = Reconcile(EventInput::FromList("test", *list), std::nullopt);
  ASSERT_TRUE(r.ok());
  for (const ReconcileRow& row : r->rows) {
    if (row.category != "activation") continue;
    EXPECT_EQ(row.textbook, 112u * 112 * 64 * 2 * 4);
    EXPECT_FALSE(row.analytic.has_value());
  }
}

}  // namespace
}  // namespace vramledger
