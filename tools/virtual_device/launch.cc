#include "tools/virtual_device/launch.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>

#include "tools/virtual_device/core/device_model.h"
#include "tools/virtual_device/core/environment.h"
#include "tools/virtual_device/core/memory.h"

namespace vd {
namespace {

namespace fs = std::filesystem;

Launch Refuse(std::string sentence) {
  Launch launch;
  launch.error = std::move(sentence);
  return launch;
}

std::string FindProgram(const std::string& name) {
  std::error_code ignored;
  const auto usable = [&](const std::string& path) {
    return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) return usable(name) ? name : "";
  const char* path = std::getenv("PATH");
  const std::string folders = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
  size_t at = 0;
  while (at <= folders.size()) {
    const size_t end = std::min(folders.find(':', at), folders.size());
    const std::string candidate = folders.substr(at, end - at) + "/" + name;
    if (usable(candidate)) return candidate;
    at = end + 1;
  }
  return "";
}

// What `python -m vramledger run` is given on.
std::vector<std::string> OptionsOfRun(const LaunchOptions& o) {
  std::vector<std::string> words;
  for (const auto& [option, value] :
       {std::pair("--trace", o.trace), std::pair("--policy", o.policy), std::pair("--stacks", o.stacks)}) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  }
  if (o.no_trace) words.emplace_back("--no-trace");
  if (o.no_hooks) words.emplace_back("--no-hooks");
  return words;
}

// python train.py ARGS -> python -m vramledger run [--mode MODE] OPTIONS train.py ARGS; -m MODULE likewise. Options of
// the interpreter stay in front. False: no script or module in the command.
bool RunThroughPackage(Launch* launch, const std::string& mode, const std::vector<std::string>& options) {
  std::vector<std::string>* command = &launch->command;
  const std::string name = fs::path(command->front()).filename().string();
  if (name.rfind("python", 0) != 0) return false;
  size_t at = 1;
  for (; at < command->size(); ++at) {
    const std::string& word = (*command)[at];
    if (word == "-m" || word.empty() || word[0] != '-') break;
    if (word == "-c" || word == "-") return false;
    if (word == "-W" || word == "-X") ++at;  // these take the next word
  }
  if (at >= command->size()) return false;
  std::vector<std::string> inserted = {"-m", "vramledger", "run"};
  if (!mode.empty()) inserted.insert(inserted.end(), {"--mode", mode});
  inserted.insert(inserted.end(), options.begin(), options.end());
  command->insert(command->begin() + static_cast<std::ptrdiff_t>(at), inserted.begin(), inserted.end());
  launch->package_at = at;
  return true;
}

// PATH from the root on; as it is where the current folder is gone.
fs::path Absolute(const std::string& path) {
  std::error_code error;
  fs::path absolute = fs::absolute(path, error);
  return error ? fs::path(path) : absolute;
}

// Why no summary can be written there; "" if one can. One that stands there is replaced, not written into.
std::string WhyNoReport(const std::string& file) {
  std::error_code ignored;
  const fs::path path = Absolute(file);
  const std::string folder = path.parent_path().string();
  if (!path.is_absolute()) return "there is no current folder for the device report '" + file + "'";
  if (!fs::is_directory(folder, ignored))
    return "there is no folder '" + folder + "' for the device report '" + file + "'";
  if (fs::is_directory(path, ignored)) return "the device report '" + file + "' is a folder";
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored))
    return "the device report '" + file + "' cannot be written: it is no regular file";
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    return "the device report '" + file + "' cannot be written: no permission";
  return "";
}

std::string Joined(const std::vector<std::string>& words, const char* separator) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += separator;
    out += word;
  }
  return out;
}

}  // namespace

std::string ExecutableFolder() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).parent_path().string();
}

std::string FindStandIns() {
  std::error_code ignored;
  if (const char* wanted = std::getenv("VRAMLEDGER_VIRTUAL_DEVICE_DIR"); wanted != nullptr && *wanted != '\0') {
    return fs::is_directory(wanted, ignored) ? Absolute(wanted).lexically_normal().string() : "";
  }
  const fs::path folder = fs::path(ExecutableFolder()) / ".." / "lib" / "virtual_device";
  return fs::is_directory(folder, ignored) ? folder.lexically_normal().string() : "";
}

std::vector<std::string> StandInFiles(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("lib", 0) == 0 && name.find(".so") != std::string::npos) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool ParseSize(const std::string& text, uint64_t* bytes) {
  char* end = nullptr;
  // strtod would read hexadecimal too.
  if (text.empty() || std::strchr("0123456789.", text[0]) == nullptr || text.find_first_of("xX") != text.npos) return false;
  const double number = std::strtod(text.c_str(), &end);
  std::string suffix = end + std::strspn(end, " ");
  std::transform(suffix.begin(), suffix.end(), suffix.begin(), [](unsigned char c) { return std::tolower(c); });
  double unit = 1;
  if (!suffix.empty() && suffix != "b") {
    const size_t power = std::string("kmgt").find(suffix[0]);
    if (power == std::string::npos) return false;
    const std::string rest = suffix.substr(1);
    if (rest != "" && rest != "ib" && rest != "b") return false;
    unit = std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(power) + 1);
  }
  if (!(number * unit >= 1) || number * unit > 9e15) return false;
  // Whole bytes are kept exact, beyond what the product could hold.
  *bytes = text.find_first_not_of("0123456789") == text.npos ? std::strtoull(text.c_str(), nullptr, 10) : static_cast<uint64_t>(number * unit);
  return true;
}

Launch PrepareLaunch(const LaunchOptions& o) {
  if (o.command.empty()) return Refuse("dryrun needs a command after --, such as: -- python train.py");
  const std::string folder = FindStandIns();
  const std::vector<std::string> files = folder.empty() ? std::vector<std::string>{} : StandInFiles(folder);
  if (files.empty()) {
    return Refuse("the stand-ins of the virtual device are not there (build with a PyTorch CUDA wheel in "
                  "VRAMLEDGER_SITE_PACKAGES, or set VRAMLEDGER_VIRTUAL_DEVICE_DIR)");
  }
  if (std::any_of(files.begin(), files.end(), [](const std::string& f) { return f.find_first_of(": ") != f.npos; })) {
    return Refuse("the stand-ins cannot be preloaded from a folder with a space or a colon in its name: " + folder);
  }
  const std::string device_file =
      o.device.find('/') != std::string::npos ? o.device : folder + "/devices/" + o.device + ".json";
  DeviceModel model;
  try {
    if (access(device_file.c_str(), R_OK) != 0) {
      return Refuse("there is no virtual device '" + o.device + "'; known: " + Joined(ListDeviceModels(folder + "/devices"), ", ") +
                    (o.device.find_first_not_of("0123456789") == std::string::npos ? "; how many devices there are, --devices says" : ""));
    }
    model = ReadDeviceModel(device_file);
  } catch (const std::exception& error) {
    return Refuse(error.what());
  }
  Launch launch;
  auto& environment = launch.environment;
  if (!o.memory.empty()) {
    uint64_t bytes = 0;
    if (!ParseSize(o.memory, &bytes)) return Refuse("'" + o.memory + "' is not a size; write 24GiB, 24GB or a number of bytes");
    const uint64_t least = ContextBytes() + kGranularity;
    if (bytes < least) {
      return Refuse("--memory " + o.memory + " leaves no memory beside the CUDA context, which takes " +
                    std::to_string(ContextBytes() >> 20) + " MiB; write at least " +
                    std::to_string((least + (1 << 20) - 1) >> 20) + "MiB (or 24GiB, 24GB, a number of bytes)");
    }
    environment["VRAMLEDGER_VIRTUAL_DEVICE_MEMORY"] = std::to_string(bytes);
  }
  if (o.devices < 1 || o.devices > 16) return Refuse("--devices must be from 1 to 16");
  if (o.address_order != "up" && o.address_order != "down") return Refuse("--address-order is up or down");
  if (!o.delay_seed.empty() && o.delay_seed.find_first_not_of("0123456789") != std::string::npos) {
    return Refuse("--delay-seed must be a whole number");
  }
  launch.command = o.command;
  if (o.allocator.empty() || o.allocator == "plugin" || o.allocator == "torch" || o.allocator == "observe") {
    if (!RunThroughPackage(&launch, o.allocator, OptionsOfRun(o))) {
      return Refuse((o.allocator.empty() ? "" : "with --allocator " + o.allocator + " ") +
                    "the command must be python with a script or -m MODULE; use --allocator native for anything else");
    }
  } else if (o.allocator == "native") {
    if (!o.trace.empty()) {
      return Refuse("PyTorch's own allocator writes no trace; use --allocator observe to watch it, or plugin or torch to replace it");
    }
    if (const std::vector<std::string> idle = OptionsOfRun(o); !idle.empty())
      return Refuse("--allocator native runs the command as it is: leave " + idle.front() + " out");
  } else {
    return Refuse("'" + o.allocator + "' is not an allocator; use torch, plugin, observe or native");
  }
  if (const std::string reason = o.report.empty() ? "" : WhyNoReport(o.report); !reason.empty()) return Refuse(reason);
  launch.program = FindProgram(o.command.front());
  if (launch.program.empty()) return Refuse("the command '" + o.command.front() + "' was not found");

  std::vector<std::string> preload = files;
  if (const char* before = std::getenv("LD_PRELOAD"); before != nullptr && *before != '\0') preload.push_back(before);
  environment["LD_PRELOAD"] = Joined(preload, ":");
  environment["TRITON_LIBCUDA_PATH"] = folder;
  environment["VRAMLEDGER_VIRTUAL_DEVICE"] = o.device.find('/') != std::string::npos ? Absolute(o.device).string() : model.id;
  environment["VRAMLEDGER_VIRTUAL_DEVICE_COUNT"] = std::to_string(o.devices);
  environment["VRAMLEDGER_VIRTUAL_DEVICE_ADDRESS_ORDER"] = o.address_order;
  if (!o.delay_seed.empty()) environment["VRAMLEDGER_VIRTUAL_DEVICE_DELAY_SEED"] = o.delay_seed;
  // `run` names the summary after its trace, whose name it settles. A script that plugs the allocator in itself names the trace
  // in the environment.
  std::string report = o.report;
  const char* named = std::getenv("VRAMLEDGER_TRACE");
  if (report.empty() && o.allocator == "native" && named != nullptr && *named != '\0' && std::strchr(named, '%') == nullptr)
    report = std::string(named) + ".device.json";
  if (!report.empty()) environment["VRAMLEDGER_VIRTUAL_DEVICE_REPORT"] = Absolute(report).string();
  return launch;
}

std::string WhyNoPackage(const Launch& launch) {
  if (launch.package_at == 0) return "";
  // A folder of that name alone, as where this project was cloned to, is a package without an origin.
  constexpr int kMissing = 3;
  std::vector<std::string> words(launch.command.begin(), launch.command.begin() + static_cast<std::ptrdiff_t>(launch.package_at));
  words.insert(words.end(), {"-c", "import importlib.util, sys; found = importlib.util.find_spec('vramledger'); "
                                   "sys.exit(" + std::to_string(kMissing) + " if found is None or found.origin is None else 0)"});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  for (const int out : {STDOUT_FILENO, STDERR_FILENO}) posix_spawn_file_actions_addopen(&files, out, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  int status = 0;
  const bool started = posix_spawn(&child, launch.program.c_str(), &files, nullptr, arguments.data(), environ) == 0;
  posix_spawn_file_actions_destroy(&files);
  while (started && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  // Whatever else may be wrong with it, it says itself.
  if (!started || !WIFEXITED(status) || WEXITSTATUS(status) != kMissing) return "";
  return "the Python '" + launch.command.front() +
         "' has no package vramledger: name the one that has it (after tools/demo.sh .venv/bin/python), or install it into this one, "
         "from vramledger's folder: " + launch.command.front() + " -m pip install --no-deps .";
}

std::string Execute(const Launch& launch) {
  for (const auto& [name, value] : launch.environment) setenv(name.c_str(), value.c_str(), 1);
  // A summary of an earlier run must not be taken for this one's, and the device never overwrites one.
  auto report = launch.environment.find("VRAMLEDGER_VIRTUAL_DEVICE_REPORT");
  if (report != launch.environment.end()) unlink(report->second.c_str());
  std::vector<char*> words;
  for (const std::string& word : launch.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execv(launch.program.c_str(), words.data());
  return "cannot start '" + launch.program + "': " + std::strerror(errno);
}

}  // namespace vd
