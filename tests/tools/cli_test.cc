// The tool as a program: exit codes, one sentence for each failure, JSON that parses.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "nlohmann/json.hpp"
#include "tests/tools/pickle_builder.h"
#include "tools/foreign/file_bytes.h"
#include "tracer/format/record.h"

namespace vramledger {
namespace {

struct Outcome {
  int code = -1;
  std::string output;
};

Outcome Tool(const std::string& arguments) {
  const std::string command = std::string(VRAMLEDGER_BINARY) + " " + arguments + " 2>&1";
  Outcome out;
  FILE* pipe = popen(command.c_str(), "r");
  char buffer[4096];
  while (size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) out.output.append(buffer, n);
  const int status = pclose(pipe);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

std::string Snapshot(const std::string& name) {
  return std::string(VRAMLEDGER_TEST_DATA) + "/snapshots/" + name + ".pickle.gz";
}
std::string Golden(const std::string& name) {
  return std::string(VRAMLEDGER_GOLDEN) + "/" + name;
}

std::string Temporary(const std::string& name, const std::string& bytes) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(Tool, HelpHasAnExample) {
  for (const char* command : {"report", "reconcile", "estimate", "advise", "import", "check", "export", "replay"}) {
    const Outcome o = Tool(std::string(command) + " --help");
    EXPECT_EQ(o.code, 0) << command;
    EXPECT_NE(o.output.find("Example: vramledger "), std::string::npos) << command;
  }
}

TEST(Tool, JsonOfEveryCommandParses) {
  const std::string trace = Golden("training.events");
  const std::pair<std::string, std::string> kCases[] = {
      {"report " + trace + " --json", "vramledger.report/1"},
      {"reconcile " + trace + " --json", "vramledger.reconcile/1"},
      {"advise " + trace + " --capacity 24GiB --json", "vramledger.advise/1"},
      {"check " + trace + " --json", "vramledger.check/1"},
      {"replay " + trace + " --json", "vramledger.replay/1"},
      {"export " + trace, "vramledger.events/1"},
      {"estimate " + std::string(VRAMLEDGER_TEST_DATA) + "/model_configs/gpt2.json --json", "vramledger.estimate/1"},
      {"report " + Snapshot("state_no_trace") + " --json", "vramledger.report/1"}};
  for (const auto& [arguments, schema] : kCases) {
    const Outcome o = Tool(arguments);
    EXPECT_EQ(o.code, 0) << arguments << o.output;
    const auto json = nlohmann::json::parse(o.output, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << arguments;
    EXPECT_EQ(json["schema"], schema);
  }
}

TEST(Tool, ReportJsonContract) {
  const auto j = nlohmann::json::parse(Tool("report " + Golden("training.events") + " --json").output);
  for (const char* key : {"source", "device", "loss", "peak", "category_peaks", "phase_peaks", "next_peak",
                          "fragmentation", "verdicts"}) {
    EXPECT_TRUE(j.contains(key)) << key;
  }
  for (const char* key :
       {"time_ns", "step", "phase", "requested_bytes", "rounded_bytes", "reserved_bytes", "categories"}) {
    EXPECT_TRUE(j["peak"].contains(key)) << key;
  }
  EXPECT_TRUE(j["device"]["virtual"].get<bool>());
  EXPECT_TRUE(j["peak"]["categories"]["parameter"]["rounded_bytes"].is_number_unsigned());
}

TEST(Tool, ExitCodes) {
  EXPECT_EQ(Tool("").code, 2);
  EXPECT_EQ(Tool("frobnicate").code, 2);
  EXPECT_EQ(Tool("report").code, 2);
  EXPECT_EQ(Tool("advise " + Golden("training.events") + " --capacity much").code, 2);
  EXPECT_EQ(Tool("report /nonexistent").code, 3);
  EXPECT_EQ(Tool("estimate /nonexistent").code, 3);
  const std::string wrong =
      Temporary("double.events", "vramledger events 1\nsegment s 10M\nalloc a 1M in=s\nalloc b 1M in=s\n");
  EXPECT_EQ(Tool("check " + wrong).code, 1);
  EXPECT_EQ(Tool("check " + Golden("training.events")).code, 0);
  for (const char* command : {"report", "reconcile"}) {
    const Outcome o = Tool(std::string(command) + " " + Golden("training.events") + " --device 7");
    EXPECT_EQ(o.code, 2) << o.output;
    EXPECT_NE(o.output.find("nothing was recorded on device 7"), std::string::npos) << o.output;
  }
  EXPECT_EQ(Tool("replay " + Golden("training.events") + " --device-index 7").code, 2);
}

TEST(Tool, AReplayThatRunsOutOfMemoryIsAFailedCheckAndNamesWhatOthersTake) {
  const std::string device = R"("devices":[{"index":0,"total_bytes":1073741824,"free_bytes_at_start":905969664}])";
  const std::string trace = Temporary("context.events", "vramledger events 1\nmeta {" + device +
                                                            "}\nsegment s 600M\nphase forward\nalloc a 600M in=s\n");
  const Outcome fits = Tool("replay " + trace);
  EXPECT_EQ(fits.code, 0) << fits.output;
  EXPECT_NE(fits.output.find("160.0 MiB of it taken by others than the allocator"), std::string::npos) << fits.output;
  const Outcome o = Tool("replay " + trace + " --capacity 700MiB");
  EXPECT_EQ(o.code, 1) << o.output;
  EXPECT_NE(o.output.find("the requests do not fit: out of memory at event"), std::string::npos) << o.output;
}

TEST(Tool, AReportShowsPhasesOfTheProgramsOwn) {
  const std::string trace = Temporary("own_phases.events", R"(vramledger events 1
phase forward
alloc w 10M
scope outer
alloc a 5M
scope inner
alloc b 3M
free b
endscope inner
free a
endscope outer
alloc c 40M
step SGD
scope inner
endscope inner
)");
  const auto own = nlohmann::json::parse(Tool("report " + trace + " --json").output)["own_phases"];
  ASSERT_EQ(own.size(), 2u);
  EXPECT_EQ(own[0]["name"], "outer");
  EXPECT_EQ(own[0]["peak_bytes"], 18 << 20);
  EXPECT_EQ(own[0]["rise_bytes"], 8 << 20);
  EXPECT_EQ(own[1]["name"], "inner");
  EXPECT_EQ(own[1]["times"], 2);
  EXPECT_EQ(own[1]["peak_bytes"], 50 << 20);
  EXPECT_EQ(own[1]["peak_step"], 2);
  EXPECT_EQ(own[1]["rise_bytes"], 3 << 20);
  EXPECT_NE(Tool("report " + trace).output.find("Phases of the program's own"), std::string::npos);
  EXPECT_EQ(Tool("report " + Golden("training.events")).output.find("Phases of the program's own"), std::string::npos);
}

TEST(Tool, SaysWhatIsNoCommandAndWhatIsNoCard) {
  EXPECT_NE(Tool("nonsense").output.find("no command \"nonsense\""), std::string::npos);
  const Outcome o = Tool("advise " + Golden("training.events") + " --capacity 24");
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.output.find("24 bytes? write 24GiB"), std::string::npos) << o.output;
  const Outcome two =
      Tool("advise " + Golden("training.events") + " --second " + Golden("gan.events") + " --capacity 24GiB");
  EXPECT_EQ(two.code, 2) << two.output;
}

TEST(Tool, OptionsThatContradictEachOtherAreRefused) {
  const std::string trace = Golden("training.events");
  const std::string vmm = Temporary(
      "vmm.events",
      R"(vramledger events 1
meta {"allocator":{"mode":"torch","policy":"vmm","settings":""},"devices":[{"index":0,"total_bytes":1073741824}]}
phase forward
alloc a 10M
)");
  const std::string idle = "max_split_size_mb has an effect on private pools only, and a trace does not tell which";
  const std::pair<std::string, std::string> kCases[] = {
      {"export " + trace + " --json --format csv", "--json and --format csv contradict each other"},
      {"replay " + trace + " --device t4 --capacity 24GiB", "both say how much memory there is: give one of them"},
      {"replay " + trace + " --policy vmm --settings max_split_size_mb:64", idle},
      {"replay " + vmm + " --settings max_split_size_mb:64", idle}};
  for (const auto& [arguments, words] : kCases) {
    const Outcome o = Tool(arguments);
    EXPECT_EQ(o.code, 2) << o.output;
    EXPECT_NE(o.output.find(words), std::string::npos) << o.output;
    EXPECT_EQ(std::count(o.output.begin(), o.output.end(), '\n'), 1) << o.output;
  }
  EXPECT_EQ(Tool("export " + trace + " --json --format json").code, 0);
  EXPECT_EQ(Tool("replay " + trace + " --policy vmm --settings roundup_power2_divisions:4").code, 0);
  EXPECT_EQ(Tool("replay " + vmm + " --policy native --settings max_split_size_mb:64").code, 0);
}

// `--device` is a card in dryrun and replay, and one of the trace's devices elsewhere.
TEST(Tool, ADeviceOfTheOtherKindIsToldTheRightOption) {
  const std::string trace = Golden("training.events");
  const std::pair<std::string, std::string> kCases[] = {
      {"report " + trace + " --device h100-80gb",
       "\"h100-80gb\" is no index of a device of the trace (0 to 255); a card is given to `vramledger dryrun` or `vramledger replay`"},
      {"reconcile " + trace + " --device t4", "\"t4\" is no index of a device of the trace (0 to 255)"},
      {"report " + trace + " --device 256", "\"256\" is no index of a device of the trace (0 to 255)"},
      {"advise " + trace + " --capacity 24GiB --device t4", "the card to advise for is given by its memory, as --capacity 24GiB"},
      {"replay " + trace + " --device-index t4", "\"t4\" is no index of a device of the trace (0 to 255); a card is given with --device"},
      {"replay " + trace + " --device 0",
       "\"0\" is no card, which `vramledger doctor` lists by name; the index of a device of the trace is given with --device-index"}};
  for (const auto& [arguments, words] : kCases) {
    const Outcome o = Tool(arguments);
    EXPECT_EQ(o.code, 2) << o.output;
    EXPECT_NE(o.output.find(words), std::string::npos) << o.output;
  }
  for (const std::string command : {"report ", "reconcile ", "advise --capacity 24GiB "})
    EXPECT_EQ(Tool(command + trace + " --device 0").code, 0) << command;
  EXPECT_EQ(Tool("replay " + trace + " --device-index 0").code, 0);
}

TEST(Tool, AnEstimateOfAnImageModelTakesNoSequence) {
  const std::string models = std::string(VRAMLEDGER_TEST_DATA) + "/model_configs/";
  for (const std::string& model : {std::string("torchvision:resnet50"), models + "vit-base-patch16-224.json"}) {
    const Outcome o = Tool("estimate " + model + " --sequence 64");
    EXPECT_EQ(o.code, 2) << o.output;
    EXPECT_NE(o.output.find("--sequence has no effect on "), std::string::npos) << o.output;
    EXPECT_EQ(Tool("estimate " + model).code, 0);
  }
  for (const char* model : {"gpt2.json", "bert-base-uncased.json"}) {
    const Outcome o = Tool("estimate " + models + model + " --decoder-sequence 64");
    EXPECT_EQ(o.code, 2) << o.output;
    EXPECT_NE(o.output.find(", which is not an encoder with a decoder"), std::string::npos) << o.output;
  }
  EXPECT_EQ(Tool("estimate " + models + "t5-base.json --sequence 64 --decoder-sequence 32").code, 0);
}

TEST(Tool, NeverWritesOverItsInput) {
  const std::string text = *ReadFile(Golden("training.events"));
  const std::string trace = Temporary("own.events", text), link = ::testing::TempDir() + "/own_link.events";
  std::filesystem::remove(link);
  std::filesystem::create_hard_link(trace, link);
  for (const std::string& command :
       {"export " + trace + " -o " + trace, "export " + trace + " -o " + link, "import " + trace + " -o " + trace}) {
    const Outcome o = Tool(command);
    EXPECT_EQ(o.code, 2) << command;
    EXPECT_NE(o.output.find("is the input itself"), std::string::npos) << o.output;
    EXPECT_EQ(*ReadFile(trace), text);
  }
  std::filesystem::remove(link);
  const std::string out = ::testing::TempDir() + "/own.csv";
  EXPECT_EQ(Tool("export " + trace + " --format csv -o " + out).code, 0);
  EXPECT_TRUE(std::filesystem::exists(out));
  EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
}

TEST(Tool, BadInputIsOneSentenceAndRunsNothing) {
  const std::string mark = ::testing::TempDir() + "/executed";
  std::filesystem::remove(mark);
  const std::string gz = *ReadFile(Snapshot("lm_fullstep"));
  std::string flipped = gz;
  flipped[gz.size() / 3] = static_cast<char>(flipped[gz.size() / 3] ^ 4);
  const std::pair<std::string, std::string> kCases[] = {
      {Temporary("empty.pickle", ""), "empty"},
      {Temporary("text.pickle", "just some text\n"), "text"},
      {Temporary("cut.pickle", gz.substr(0, 1000)), "cut off"},
      {Temporary("flipped.pickle", flipped), "wrong at byte"},
      {Temporary("malicious.pickle", testing::Pickle("cos\nsystem\n" + testing::PickleText("touch " + mark) + "\x85R")),
       "GLOBAL at byte 2"},
      {Temporary("reduce.pickle", testing::Pickle("N)R")), "REDUCE at byte 4"}};
  for (const auto& [path, words] : kCases) {
    for (const std::string& command :
         {"report " + path, "import " + path + " -o " + ::testing::TempDir() + "/out.vlt", "check " + path}) {
      const Outcome o = Tool(command);
      EXPECT_EQ(o.code, 3) << command;
      EXPECT_NE(o.output.find(words), std::string::npos) << o.output;
      EXPECT_EQ(std::count(o.output.begin(), o.output.end(), '\n'), 1) << o.output;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(mark));
}

TEST(Tool, JsonNestedWithoutEndIsRefused) {
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += R"({"a":)";
  nested += "1" + std::string(100'000, '}');
  const Outcome events = Tool("report " + Temporary("deep.events", "vramledger events 1\nmeta " + nested + "\n"));
  EXPECT_EQ(events.code, 3);
  EXPECT_NE(events.output.find("line 2: meta needs a JSON object of at most 64 levels"), std::string::npos);
  const Outcome model = Tool("estimate " + Temporary("deep.json", nested));
  EXPECT_EQ(model.code, 3);
  EXPECT_NE(model.output.find("is no JSON, or nested deeper than 64 levels"), std::string::npos);
}

TEST(Tool, ImportedTraceReportsTheSame) {
  const std::string trace = ::testing::TempDir() + "/imported.vlt";
  ASSERT_EQ(Tool("import " + Snapshot("medium_ctx128_training") + " -o " + trace).code, 0);
  const auto a = nlohmann::json::parse(Tool("report " + Snapshot("medium_ctx128_training") + " --json").output);
  const auto b = nlohmann::json::parse(Tool("report " + trace + " --json").output);
  for (const char* key : {"peak", "category_peaks", "phase_peaks", "fragmentation", "verdicts", "end"}) {
    if (std::string(key) == "peak") {
      EXPECT_EQ(a[key]["categories"], b[key]["categories"]);
      EXPECT_EQ(a[key]["modules"], b[key]["modules"]);
      continue;
    }
    auto x = a[key], y = b[key];
    // The trace keeps time in units of 16 ns.
    for (auto* j : {&x, &y}) {
      if (j->is_array()) continue;
      j->erase("time_ns"), j->erase("reserved_peak_time_ns");
      for (auto& item : *j) {
        if (item.is_object()) item.erase("time_ns");
      }
    }
    EXPECT_EQ(x, y) << key;
  }
  std::filesystem::remove(trace);
}

// A trace of a program that runs on, or was killed, differs from a closed one in one word of its header.
TEST(Tool, ATraceThatHasNotEndedFitsSoFar) {
  const std::string trace = ::testing::TempDir() + "/open.vlt";
  ASSERT_EQ(Tool("import " + Golden("training.events") + " -o " + trace).code, 0);
  EXPECT_EQ(Tool("advise " + trace + " --capacity 24GiB").output.find("so far"), std::string::npos);
  EXPECT_EQ(Tool("report " + trace).output.find("so far"), std::string::npos);
  {
    std::fstream file(trace, std::ios::in | std::ios::out | std::ios::binary);
    const auto open = static_cast<uint32_t>(TraceState::kOpen);
    file.seekp(offsetof(FileHeader, state));
    file.write(reinterpret_cast<const char*>(&open), sizeof(open));
  }
  const Outcome advice = Tool("advise " + trace + " --capacity 24GiB");
  EXPECT_EQ(advice.code, 0) << advice.output;
  EXPECT_EQ(advice.output.find("The run at batch 4 has not ended in this trace (crash, kill, or still running). So far it peaks at 110.1 MiB "
                               "allocated"),
            0u)
      << advice.output;
  EXPECT_NE(advice.output.find("and so far it fits in 24.00 GiB"), std::string::npos) << advice.output;
  EXPECT_NE(Tool("advise " + trace + " --capacity 1GiB").output.find("and so far it does not fit in 1.00 GiB"), std::string::npos);
  EXPECT_EQ(Tool("report " + trace).output.find("Peak so far 110.1 MiB allocated"), 0u);
  EXPECT_EQ(nlohmann::json::parse(Tool("advise " + trace + " --capacity 24GiB --json").output)["source"]["ended_early"], true);
  std::filesystem::remove(trace);
}

TEST(Tool, CsvHasOneLineAnEvent) {
  const Outcome o = Tool("export " + Golden("gan.events") + " --format csv");
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(o.output.find("sequence,time_ns,kind,"), 0u);
  EXPECT_GT(std::count(o.output.begin(), o.output.end(), '\n'), 50);
  EXPECT_NE(o.output.find(",parameter\n"), std::string::npos) << "each allocation with its category";
}

}  // namespace
}  // namespace vramledger
