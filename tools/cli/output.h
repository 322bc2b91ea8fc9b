// How commands print.
#ifndef VRAMLEDGER_TOOLS_CLI_OUTPUT_H_
#define VRAMLEDGER_TOOLS_CLI_OUTPUT_H_

#include <string>

#include "nlohmann/json.hpp"

namespace vramledger::cli {

// Standard output is a terminal and NO_COLOR is not set.
bool UseColor();

// Writes to `path`, or to standard output when it is empty or "-". Throws Failure when that fails.
void Write(const std::string& path, const std::string& text);
void WriteJson(const std::string& path, const nlohmann::ordered_json& json);

// Where a command writes a file of its own making: beside `path` until Done(), so that a failure leaves neither half a
// file nor a changed one. Throws Failure (wrong use) when `path` is the input, under whatever name.
class OutputFile {
 public:
  OutputFile(const std::string& input, const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  const std::string& working_path() const { return working_; }
  void Done();

 private:
  std::string path_, working_;
  bool done_ = false;
};

// "24GiB", "24G", "24000000000", "1.5TiB". Throws Failure (wrong use) on anything else.
uint64_t ParseCapacity(const std::string& text);

// A line on standard error, when that is a terminal, for work that has taken over two seconds.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  struct State;
  State* state_;
};

}  // namespace vramledger::cli

#endif  // VRAMLEDGER_TOOLS_CLI_OUTPUT_H_
