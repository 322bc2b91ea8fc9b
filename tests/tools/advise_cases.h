// Runs made up for the tests of advice and reconciliation.
#ifndef VRAMLEDGER_TESTS_TOOLS_ADVISE_CASES_H_
#define VRAMLEDGER_TESTS_TOOLS_ADVISE_CASES_H_

#include <gtest/gtest.h>

#include <string>

#include "tools/analysis/advise.h"
#include "tools/foreign/text.h"
#include "tools/foreign/text_events.h"

namespace vramledger::testing {

// Two blocks of a list, 10 MiB of weights, 1 MiB of input and 8 MiB of activations a sample and block.
inline EventInput Input(int batch) {
  const std::string layers =
      Cat(R"([{"name":"layer.0.fc","class":"Linear","in_shape":[)", batch, R"(,262144],"out_shape":[)", batch,
          R"(,262144],"element_bytes":4},)"
          R"({"name":"layer.1.fc","class":"Linear","in_shape":[)",
          batch, R"(,262144],"out_shape":[)", batch, R"(,262144],"element_bytes":4}])");
  const std::string text = Cat(
      "vramledger events 1\nmeta {\"batch_size\":", batch,
      R"(,"models":[{"name":"Net","class":"Net","parameters":[)"
      R"({"name":"layer.0.fc.weight","numel":2621440,"element_bytes":4,"trainable":true},{"name":"layer.1.fc.weight","numel":2621440,"element_bytes":4,"trainable":true}],)"
      R"("layers":)",
      layers,
      R"(}],"optimizers":[{"name":"AdamW#1","class":"AdamW","state_keys":["step","exp_avg","exp_avg_sq"],"param_count":5242880,"tensor_count":2}]})",
      R"(
phase load
alloc w0 10M
name w0 parameter Net.layer.0.fc.weight
alloc w1 10M
name w1 parameter Net.layer.1.fc.weight
phase data
alloc in )",
      batch, R"(M
repeat 2
phase forward
alloc a0 )",
      8 * batch, R"(M module=Net.layer.0.fc
alloc a1 )",
      8 * batch, R"(M module=Net.layer.1.fc
phase backward
alloc g1 10M
free a1
alloc g0 10M
free a0
name g0 gradient Net.layer.0.fc.weight.grad
name g1 gradient Net.layer.1.fc.weight.grad
phase optimizer
alloc m{i} 20M
alloc v{i} 20M
free m{i}
free v{i}
step AdamW#1
phase zero_grad
free g0
free g1
end
)");
  const auto list = ReadTextEvents(text);
  EXPECT_TRUE(list.ok()) << list.status();
  return EventInput::FromList("test", *list);
}

inline const Suggestion* Find(const Advice& a, const std::string& id) {
  for (const Suggestion& s : a.suggestions) {
    if (s.id == id) return &s;
  }
  return nullptr;
}

inline EventInput Events(const std::string& text) {
  const auto list = ReadTextEvents("vramledger events 1\n" + text);
  EXPECT_TRUE(list.ok()) << list.status();
  return EventInput::FromList("test", *list);
}

inline constexpr char kCard[] = R"("devices":[{"index":0,"name":"card","total_bytes":1073741824}])";

// A step of 100 MiB of weights and 10 MiB a sample, in segments that hold half as much again.
inline std::string Step(int batch) {
  return Cat("phase forward\nalloc x ", 10 * batch,
             "M in=a at=100M\nphase backward\nfree x\nphase optimizer\nstep SGD\n");
}
inline std::string Padded(int batch, const std::string& settings = "") {
  return Cat("meta {\"batch_size\":", batch, settings, ",", kCard, "}\nsegment a ", 100 + 10 * batch, "M\nsegment b ",
             (100 + 10 * batch) / 2, "M\nalloc small 512 in=b\nphase load\nalloc w 100M in=a\nname w parameter w\n",
             Step(batch), Step(batch));
}

}  // namespace vramledger::testing

#endif  // VRAMLEDGER_TESTS_TOOLS_ADVISE_CASES_H_
