// Columns of text: the first left-aligned, the others right-aligned.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_TEXT_TABLE_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_TEXT_TABLE_H_

#include <algorithm>
#include <string>
#include <vector>

namespace vramledger {

class TextTable {
 public:
  void Row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string Text(size_t indent = 2) const {
    std::vector<size_t> width;
    for (const auto& row : rows_) {
      width.resize(std::max(width.size(), row.size()));
      for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
    }
    std::string out;
    for (const auto& row : rows_) {
      std::string line(indent, ' ');
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string pad(width[i] - row[i].size(), ' ');
        if (i != 0) line += "  ";
        line += i == 0 ? row[i] + pad : pad + row[i];
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_TEXT_TABLE_H_
