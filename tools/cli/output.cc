#include "tools/cli/output.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "tools/cli/command.h"
#include "tools/foreign/text.h"
#include "tools/virtual_device/launch.h"

namespace vramledger::cli {

bool UseColor() {
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0');
}

void Write(const std::string& path, const std::string& text) {
  const bool to_stdout = path.empty() || path == "-";
  FILE* out = to_stdout ? stdout : std::fopen(path.c_str(), "wb");
  if (out == nullptr) throw Failure{kExitUnreadable, Cat(path, ": cannot be written: ", std::strerror(errno))};
  const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0;
  const int error = errno;
  if (!to_stdout) std::fclose(out);
  if (!written)
    throw Failure{kExitUnreadable, Cat(to_stdout ? std::string("standard output") : path,
                                       ": cannot be written: ", std::strerror(error))};
}

void WriteJson(const std::string& path, const nlohmann::ordered_json& json) {
  // Texts come from files of others: bytes that are not UTF-8 are replaced, not thrown at.
  Write(path, Cat(json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), "\n"));
}

OutputFile::OutputFile(const std::string& input, const std::string& path) : path_(path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::equivalent(input, path, error) && !error)
    throw Failure{kExitUsage, Cat(path, " is the input itself; write to another file")};
  if (fs::is_symlink(path, error)) {
    const fs::path target = fs::canonical(path, error);
    if (!error) path_ = target.string();
  }
  // A pipe or a device has nothing to keep whole.
  working_ = fs::exists(path_, error) && !fs::is_regular_file(path_, error) ? path_ : path_ + ".partial";
}

OutputFile::~OutputFile() {
  if (!done_ && working_ != path_) std::remove(working_.c_str());
}

void OutputFile::Done() {
  if (working_ != path_ && std::rename(working_.c_str(), path_.c_str()) != 0)
    throw Failure{kExitUnreadable, Cat(path_, ": cannot be written: ", std::strerror(errno))};
  done_ = true;
}

uint64_t ParseCapacity(const std::string& text) {
  uint64_t bytes = 0;
  if (!vd::ParseSize(text, &bytes)) {
    throw Failure{kExitUsage, Cat("\"", text, "\" is no amount of memory; write 24GiB, 80GB or a number of bytes")};
  }
  // A card of 24 bytes is a card of 24 GiB with its unit forgotten.
  if (text.find_first_not_of("0123456789.") == std::string::npos && bytes < uint64_t{1} << 20)
    throw Failure{kExitUsage, Cat(text, " bytes? write ", text, "GiB")};
  return bytes;
}

struct Progress::State {
  std::mutex mutex;
  std::condition_variable done_changed;
  bool done = false;
  bool shown = false;
  std::string what;
  std::thread thread;
};

Progress::Progress(std::string what) : state_(nullptr) {
  if (isatty(STDERR_FILENO) != 1) return;
  state_ = new State;
  state_->what = std::move(what);
  state_->thread = std::thread([s = state_] {
    std::unique_lock<std::mutex> lock(s->mutex);
    for (int seconds = 2;
         !s->done_changed.wait_for(lock, std::chrono::seconds(seconds == 2 ? 2 : 1), [s] { return s->done; });
         ++seconds) {
      std::fprintf(stderr, "\r%s: %d s", s->what.c_str(), seconds);
      s->shown = true;
    }
  });
}

Progress::~Progress() {
  if (state_ == nullptr) return;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->done = true;
  }
  state_->done_changed.notify_all();
  state_->thread.join();
  if (state_->shown) std::fprintf(stderr, "\r\033[K");
  delete state_;
}

}  // namespace vramledger::cli
