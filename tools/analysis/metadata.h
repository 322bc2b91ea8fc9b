// Typed access to a trace's metadata (the keys that the Python package writes); everything may be absent.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_METADATA_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_METADATA_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tracer/format/event.h"

namespace vramledger {

// One network as it was described when it first ran.
struct ModelSize {
  std::string name, class_name;
  uint64_t parameters = 0;  // elements
  uint64_t parameter_bytes = 0;
};

class Metadata {
 public:
  explicit Metadata(const std::string& text);

  bool virtual_device() const;
  DeviceInfo device(int index) const;
  std::optional<uint64_t> batch_size() const;
  // From the "config" of a model, or of the run: hidden size, layers, vocabulary ...
  std::optional<uint64_t> config(const std::vector<std::string>& keys) const;
  // Longest input sequence: "sequence_length" if recorded.
  std::optional<uint64_t> sequence_length() const;
  std::vector<ModelSize> model_sizes() const;
  // Objects as written.
  const nlohmann::json& models() const { return models_; }
  const nlohmann::json& optimizers() const { return optimizers_; }
  const nlohmann::json& root() const { return root_; }
  // The recorded allocator settings give a block pages anywhere, so free memory needs no contiguous place.
  bool expandable_segments() const;
  bool has_convolutions() const;
  // Recorded by our library, which was told nothing of models or optimizers.
  bool without_hooks() const;
  // Every optimizer was made with this setting at this value ("foreach" false, "fused" true).
  bool optimizers_have(const char* key, bool value) const;

 private:
  nlohmann::json root_, models_, optimizers_;
};

// Safe readers of JSON that others wrote: the fallback when the key is absent or of another type.
uint64_t JsonUint(const nlohmann::json& object, const char* key, uint64_t fallback = 0);
bool JsonBool(const nlohmann::json& object, const char* key, bool fallback = false);
// Whole numbers of a list; 0 where an entry is none.
std::vector<uint64_t> JsonUints(const nlohmann::json& object, const char* key);
std::string JsonText(const nlohmann::json& object, const char* key);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_METADATA_H_
