#include "tools/foreign/file_bytes.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "tools/foreign/text.h"

namespace vramledger {
namespace {

absl::StatusOr<std::string> ReadUpTo(const std::string& path, uint64_t limit, bool whole) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return absl::NotFoundError(std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return absl::InvalidArgumentError("is a folder, not a file");
  if (whole && S_ISREG(info.st_mode) && static_cast<uint64_t>(info.st_size) > limit) {
    return absl::ResourceExhaustedError(Cat("is larger than the limit of ", limit, " bytes"));
  }
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) return absl::PermissionDeniedError(std::strerror(errno));
  std::string out;
  if (S_ISREG(info.st_mode)) out.reserve(std::min<uint64_t>(limit, static_cast<uint64_t>(info.st_size)));
  char buffer[1 << 16];
  while (out.size() < limit) {
    const size_t got = std::fread(buffer, 1, std::min<uint64_t>(sizeof(buffer), limit - out.size()), file.get());
    if (got == 0) break;
    out.append(buffer, got);
  }
  if (std::ferror(file.get()) != 0) return absl::DataLossError(Cat("reading failed after byte ", out.size()));
  return out;
}

}  // namespace

absl::StatusOr<std::string> ReadFileStart(const std::string& path, uint64_t limit) {
  return ReadUpTo(path, limit, false);
}
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t limit) {
  return ReadUpTo(path, limit, true);
}

bool IsGzip(std::string_view bytes) {
  return bytes.size() >= 2 && static_cast<uint8_t>(bytes[0]) == 0x1f && static_cast<uint8_t>(bytes[1]) == 0x8b;
}

absl::StatusOr<std::string> Gunzip(std::string_view bytes, uint64_t limit) {
  z_stream z{};
  if (inflateInit2(&z, 15 + 16) != Z_OK) return absl::InternalError("zlib could not be started");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&z, &inflateEnd);
  std::string out;
  std::string chunk(1 << 18, '\0');
  size_t pos = 0;
  while (true) {
    if (z.avail_in == 0 && pos < bytes.size()) {
      const size_t n = std::min<size_t>(bytes.size() - pos, size_t{1} << 30);
      z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + pos));
      z.avail_in = static_cast<uInt>(n);
      pos += n;
    }
    z.next_out = reinterpret_cast<Bytef*>(chunk.data());
    z.avail_out = static_cast<uInt>(chunk.size());
    const int rc = inflate(&z, Z_NO_FLUSH);
    const size_t got = chunk.size() - z.avail_out;
    if (out.size() + got > limit)
      return absl::ResourceExhaustedError(Cat("unpacks to more than the limit of ", limit, " bytes"));
    out.append(chunk, 0, got);
    const size_t consumed = pos - z.avail_in;
    if (rc == Z_STREAM_END) {
      if (!IsGzip(bytes.substr(consumed))) {
        if (consumed != bytes.size())
          return absl::DataLossError(Cat("has bytes that are not gzip after byte ", consumed));
        return out;
      }
      inflateReset(&z);
      continue;
    }
    if (rc == Z_OK && (got != 0 || z.avail_in != 0 || pos < bytes.size())) continue;
    if (rc == Z_BUF_ERROR || rc == Z_OK)
      return absl::DataLossError(Cat("is cut off: the gzip data ends early, at byte ", bytes.size()));
    return absl::DataLossError(Cat("is damaged: the gzip data is wrong at byte ", consumed,
                                   z.msg != nullptr ? ": " : "", z.msg != nullptr ? z.msg : ""));
  }
}

}  // namespace vramledger
