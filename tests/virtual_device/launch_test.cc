#include "tools/virtual_device/launch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "tools/virtual_device/elf_file.h"

namespace vd {
namespace {

namespace fs = std::filesystem;

// A folder that looks like one of stand-ins.
class LaunchTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "vd_launch" + std::to_string(getpid());  // tests run side by side
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/devices");
    std::ofstream(folder_ + "/libcudart.so.13") << "";
    fs::copy(std::string(VD_DEVICES) + "/t4.json", folder_ + "/devices/t4.json");
    setenv("VRAMLEDGER_VIRTUAL_DEVICE_DIR", folder_.c_str(), 1);
    unsetenv("LD_PRELOAD");
    options_.device = "t4";
    options_.command = {"/bin/sh", "-c", "true"};
    options_.allocator = "native";
  }
  Launch Prepare() { return PrepareLaunch(options_); }
  std::string folder_;
  LaunchOptions options_;
};

TEST_F(LaunchTest, ComposesTheEnvironment) {
  options_.memory = "2GiB";
  options_.devices = 2;
  options_.delay_seed = "4";
  const Launch launch = Prepare();
  ASSERT_EQ(launch.error, "");
  EXPECT_EQ(launch.environment.at("LD_PRELOAD"), folder_ + "/libcudart.so.13");
  EXPECT_EQ(launch.environment.at("TRITON_LIBCUDA_PATH"), folder_);
  EXPECT_EQ(launch.environment.at("VRAMLEDGER_VIRTUAL_DEVICE"), "t4");
  EXPECT_EQ(launch.environment.at("VRAMLEDGER_VIRTUAL_DEVICE_MEMORY"), "2147483648");
  EXPECT_EQ(launch.environment.at("VRAMLEDGER_VIRTUAL_DEVICE_COUNT"), "2");
  EXPECT_EQ(launch.environment.at("VRAMLEDGER_VIRTUAL_DEVICE_ADDRESS_ORDER"), "up");
  EXPECT_EQ(launch.environment.at("VRAMLEDGER_VIRTUAL_DEVICE_DELAY_SEED"), "4");
  EXPECT_EQ(launch.program, "/bin/sh");
}

TEST_F(LaunchTest, MemoryThatTheContextWouldTakeWholeIsRefused) {
  for (const char* little : {"10MiB", "24", "161MiB"}) {
    options_.memory = little;
    EXPECT_EQ(Prepare().error, "--memory " + options_.memory +
                                   " leaves no memory beside the CUDA context, which takes 160 MiB; "
                                   "write at least 162MiB (or 24GiB, 24GB, a number of bytes)");
  }
  options_.memory = "162MiB";
  EXPECT_EQ(Prepare().environment.at("VRAMLEDGER_VIRTUAL_DEVICE_MEMORY"), "169869312");
  setenv("VRAMLEDGER_VIRTUAL_DEVICE_CONTEXT", "0", 1);
  options_.memory = "10MiB";
  EXPECT_EQ(Prepare().environment.at("VRAMLEDGER_VIRTUAL_DEVICE_MEMORY"), "10485760");
  unsetenv("VRAMLEDGER_VIRTUAL_DEVICE_CONTEXT");
}

TEST_F(LaunchTest, PluginRunsTheScriptThroughThePackage) {
  const std::string python = folder_ + "/python3";
  fs::copy("/bin/sh", python);
  options_.allocator = "plugin";
  options_.trace = "/tmp/a.vlt";
  options_.command = {python, "-u", "-X", "dev", "train.py", "--batch", "4"};
  const Launch launch = Prepare();
  ASSERT_EQ(launch.error, "");
  const std::vector<std::string> expected = {python, "-u", "-X", "dev", "-m", "vramledger", "run", "--mode", "plugin",
                                             "--trace", "/tmp/a.vlt", "train.py", "--batch", "4"};
  EXPECT_EQ(launch.command, expected);
  EXPECT_EQ(launch.environment.count("VRAMLEDGER_VIRTUAL_DEVICE_REPORT"), 0u);  // `run` names it
  options_.command = {python, "-m", "package.train"};
  options_.allocator = "observe";
  EXPECT_EQ(Prepare().command, (std::vector<std::string>{python, "-m", "vramledger", "run", "--mode", "observe", "--trace",
                                                         "/tmp/a.vlt", "-m", "package.train"}));
  options_.policy = "vmm";
  options_.stacks = "both";
  options_.no_hooks = true;
  EXPECT_EQ(Prepare().command,
            (std::vector<std::string>{python, "-m", "vramledger", "run", "--mode", "observe", "--trace", "/tmp/a.vlt",
                                      "--policy", "vmm", "--stacks", "both", "--no-hooks", "-m", "package.train"}));
  options_.policy = options_.stacks = "";
  options_.no_hooks = false;
  // Without a choice the package chooses, as it does on a real device.
  options_.allocator = "";
  options_.trace = "";
  EXPECT_EQ(Prepare().command, (std::vector<std::string>{python, "-m", "vramledger", "run", "-m", "package.train"}));
  options_.no_trace = true;
  EXPECT_EQ(Prepare().command,
            (std::vector<std::string>{python, "-m", "vramledger", "run", "--no-trace", "-m", "package.train"}));
}

// Stands in for a Python: keeps what it was asked, and exits with `code`.
TEST_F(LaunchTest, APythonWithoutThePackageIsNamed) {
  const std::string python = folder_ + "/python3", asked = folder_ + "/asked";
  options_.allocator = "";
  options_.command = {python, "-X", "dev", "train.py"};
  const auto reason = [&](int code) {
    std::ofstream(python) << "#!/bin/sh\necho \"$1 $2 $3\" > " << asked << "\nexit " << code << "\n";
    fs::permissions(python, fs::perms::owner_all);
    return WhyNoPackage(Prepare());
  };
  EXPECT_EQ(reason(3), "the Python '" + python +
                           "' has no package vramledger: name the one that has it (after tools/demo.sh .venv/bin/python), or install it into "
                           "this one, from vramledger's folder: " +
                           python + " -m pip install --no-deps .");
  std::string words;
  std::getline(std::ifstream(asked), words);
  EXPECT_EQ(words, "-X dev -c");
  EXPECT_EQ(reason(0), "");
  EXPECT_EQ(reason(1), "");
  fs::remove(asked);
  options_.allocator = "native";
  EXPECT_EQ(reason(3), "");
  EXPECT_FALSE(fs::exists(asked));
}

TEST_F(LaunchTest, TheSummaryIsNamedByTheOptionOrThePureFormsTrace) {
  options_.report = "/tmp/d.json";
  EXPECT_EQ(Prepare().environment.at("VRAMLEDGER_VIRTUAL_DEVICE_REPORT"), "/tmp/d.json");
  options_.report = "";
  setenv("VRAMLEDGER_TRACE", "/tmp/b.vlt", 1);
  EXPECT_EQ(Prepare().environment.at("VRAMLEDGER_VIRTUAL_DEVICE_REPORT"), "/tmp/b.vlt.device.json");
  unsetenv("VRAMLEDGER_TRACE");
}

TEST_F(LaunchTest, ADeviceReportThatCannotBeWrittenIsRefused) {
  const std::string folder = folder_ + "/reports";
  fs::create_directory(folder);
  const auto refusal = [&](const std::string& report) {
    options_.report = report;
    return Prepare().error;
  };
  EXPECT_EQ(refusal("/nonexistent/d.json"),
            "there is no folder '/nonexistent' for the device report '/nonexistent/d.json'");
  EXPECT_EQ(refusal(folder), "the device report '" + folder + "' is a folder");
  EXPECT_EQ(refusal(folder + "/"), "the device report '" + folder + "/' is a folder");
  // A report of an earlier run is removed first, which a device file must not be.
  EXPECT_EQ(refusal("/dev/null"), "the device report '/dev/null' cannot be written: it is no regular file");
  EXPECT_EQ(refusal(folder + "/d.json"), "");
  std::ofstream(folder + "/d.json") << "of an earlier run";
  EXPECT_EQ(refusal(folder + "/d.json"), "");
  const fs::path before = fs::current_path();
  fs::create_directory(folder + "/gone");
  fs::current_path(folder + "/gone");
  fs::remove(folder + "/gone");
  EXPECT_EQ(refusal("d.json"), "there is no current folder for the device report 'd.json'");
  fs::current_path(before);
  if (geteuid() != 0) {
    fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_EQ(refusal(folder + "/e.json"),
              "the device report '" + folder + "/e.json' cannot be written: no permission");
  }
}

TEST_F(LaunchTest, EveryRefusalIsASentence) {
  const auto refusal = [&](auto change) {
    const LaunchOptions before = options_;
    change(options_);
    const std::string error = Prepare().error;
    options_ = before;
    return error;
  };
  EXPECT_EQ(refusal([](auto& o) { o.device = "h1000"; }), "there is no virtual device 'h1000'; known: t4");
  EXPECT_EQ(refusal([](auto& o) { o.device = "0"; }),
            "there is no virtual device '0'; known: t4; how many devices there are, --devices says");
  EXPECT_NE(refusal([](auto& o) { o.memory = "lots"; }).find("'lots' is not a size"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.memory = "0"; }), "");
  EXPECT_NE(refusal([](auto& o) { o.devices = 0; }), "");
  EXPECT_NE(refusal([](auto& o) { o.address_order = "left"; }), "");
  EXPECT_NE(refusal([](auto& o) { o.delay_seed = "x"; }), "");
  EXPECT_NE(refusal([](auto& o) { o.command = {"no-such-program"}; }).find("was not found"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.command = {}; }), "");
  EXPECT_NE(refusal([](auto& o) { o.trace = "t.vlt"; }).find("writes no trace"), std::string::npos);
  EXPECT_EQ(refusal([](auto& o) { o.stacks = "cpp"; }),
            "--allocator native runs the command as it is: leave --stacks out");
  EXPECT_EQ(refusal([](auto& o) { o.no_trace = true; }),
            "--allocator native runs the command as it is: leave --no-trace out");
  EXPECT_NE(refusal([](auto& o) { o.allocator = "mine"; }).find("is not an allocator"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.allocator = "torch"; }).find("must be python"), std::string::npos);
  EXPECT_NE(refusal([](auto& o) { o.allocator = "plugin"; }).find("must be python"), std::string::npos);
  EXPECT_EQ(refusal([](auto& o) { o.allocator = ""; }).find("the command must be python"), 0u);
  setenv("VRAMLEDGER_VIRTUAL_DEVICE_DIR", "/no/such/folder", 1);
  EXPECT_NE(Prepare().error.find("are not there"), std::string::npos);
}

TEST(ParseSize, Units) {
  const auto size = [](const char* text) {
    uint64_t bytes = 0;
    return ParseSize(text, &bytes) ? bytes : 0;
  };
  EXPECT_EQ(size("24GiB"), 24ull << 30);
  EXPECT_EQ(size("24G"), 24ull << 30);
  EXPECT_EQ(size("24GB"), 24000000000u);
  EXPECT_EQ(size("24gib"), 24ull << 30);
  EXPECT_EQ(size("24 Gb"), 24000000000u);
  EXPECT_EQ(size("1.5KiB"), 1536u);
  EXPECT_EQ(size("123"), 123u);
  EXPECT_EQ(size("123B"), 123u);
  EXPECT_EQ(size("1e12"), 1'000'000'000'000u);
  EXPECT_EQ(size("9007199254740993"), 0u);
  EXPECT_EQ(size("4503599627370497"), 4503599627370497u);
  for (const char* bad : {"", "x", "-1", "1X", "1GiBs", "GiB", "0", "0x10", "1e300", "nan", "inf"}) EXPECT_EQ(size(bad), 0u) << bad;
}

TEST(ElfFile, ReadsThisSystemsLibrariesAndRefusesText) {
  bool found = false;
  for (const ElfSymbol& symbol : ReadElfSymbols("/proc/self/exe")) found = found || (symbol.name == "setenv" && !symbol.defined);
  EXPECT_TRUE(found);
  const std::string file = testing::TempDir() + "/not_elf";
  std::ofstream(file) << std::string(200, 'x');
  EXPECT_THROW(ReadElfSymbols(file), std::runtime_error);
  EXPECT_THROW(ReadElfSymbols("/no/such/file"), std::runtime_error);
}

}  // namespace
}  // namespace vd
