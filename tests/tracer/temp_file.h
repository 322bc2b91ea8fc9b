#ifndef VRAMLEDGER_TESTS_TRACER_TEMP_FILE_H_
#define VRAMLEDGER_TESTS_TRACER_TEMP_FILE_H_

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace vramledger {

// A path in a fresh folder, removed with it.
class TempFile {
 public:
  explicit TempFile(const std::string& name = "t.vlt") {
    char folder[] = "/tmp/vramledger_test_XXXXXX";
    folder_ = ::mkdtemp(folder);
    path_ = folder_ + "/" + name;
  }
  ~TempFile() {
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
  }
  const std::string& path() const { return path_; }

  std::vector<char> Read() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void Write(const std::vector<char>& bytes) const {
    std::ofstream out(path_, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::string folder_;
  std::string path_;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TESTS_TRACER_TEMP_FILE_H_
