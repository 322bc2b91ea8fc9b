// A whole file in memory, decompressed when it is gzip.
#ifndef VRAMLEDGER_TOOLS_FOREIGN_FILE_BYTES_H_
#define VRAMLEDGER_TOOLS_FOREIGN_FILE_BYTES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace vramledger {

inline constexpr uint64_t kMaxFileBytes = uint64_t{16} << 30;

// Up to `limit` bytes from the start of the file. Errors name the reason, not the path.
absl::StatusOr<std::string> ReadFileStart(const std::string& path, uint64_t limit);
// The whole file; an error when it is larger than `limit`.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t limit = kMaxFileBytes);

bool IsGzip(std::string_view bytes);
// All members of a gzip file. Refuses more than `limit` bytes of output; says at which compressed byte damage was
// found.
absl::StatusOr<std::string> Gunzip(std::string_view bytes, uint64_t limit = kMaxFileBytes);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_FOREIGN_FILE_BYTES_H_
