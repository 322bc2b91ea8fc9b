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
