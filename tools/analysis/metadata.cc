#include "tools/analysis/metadata.h"

namespace vramledger {

uint64_t JsonUint(const nlohmann::json& object, const char* key, uint64_t fallback) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || it == object.end() || !it->is_number()) return fallback;
  if (it->is_number_unsigned()) return it->get<uint64_t>();
  const double value = it->get<double>();
  return value > 0 ? static_cast<uint64_t>(value) : fallback;
}

bool JsonBool(const nlohmann::json& object, const char* key, bool fallback) {
  if (!object.is_object()) return fallback;
  const auto it = object.find(key);
  return it != object.end() && it->is_boolean() ? it->get<bool>() : fallback;
}

std::vector<uint64_t> JsonUints(const nlohmann::json& object, const char* key) {
  std::vector<uint64_t> out;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return out;
  for (const auto& n : *it) out.push_back(n.is_number_unsigned() ? n.get<uint64_t>() : 0);
  return out;
}
std::string JsonText(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

Metadata::Metadata(const std::string& text) {
  root_ = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root_.is_object()) root_ = nlohmann::json::object();
  // A JSON object "0": ..., "1": ... is taken as a list too: merged metadata cannot append to a list.
  const auto list = [this](const char* key) {
    nlohmann::json out = nlohmann::json::array();
    const auto it = root_.find(key);
    if (it != root_.end() && (it->is_array() || it->is_object())) {
      for (const auto& item : *it) out.push_back(item);
    }
    return out;
  };
  models_ = list("models");
  optimizers_ = list("optimizers");
}

bool Metadata::virtual_device() const {
  const auto it = root_.find("virtual_device");
  return it != root_.end() && ((it->is_boolean() && it->get<bool>()) || it->is_object() || it->is_string());
}

DeviceInfo Metadata::device(int index) const {
  DeviceInfo info;
  info.index = index;
  const auto it = root_.find("devices");
  if (it == root_.end() || (!it->is_array() && !it->is_object())) return info;
  int position = 0;
  for (const auto& d : *it) {
    if (static_cast<int>(JsonUint(d, "index", static_cast<uint64_t>(position++))) != index) continue;
    info.name = JsonText(d, "name");
    info.total_bytes = JsonUint(d, "total_bytes");
  }
  return info;
}

std::vector<ModelSize> Metadata::model_sizes() const {
  std::vector<ModelSize> out;
  for (const nlohmann::json& model : models_) {
    const auto parameters = model.is_object() ? model.find("parameters") : model.end();
    if (parameters == model.end() || !parameters->is_array()) continue;
    ModelSize size{JsonText(model, "name"), JsonText(model, "class")};
    for (const nlohmann::json& p : *parameters) {
      size.parameters += JsonUint(p, "numel");
      size.parameter_bytes += JsonUint(p, "numel") * JsonUint(p, "element_bytes");
    }
    out.push_back(std::move(size));
  }
  return out;
}

bool Metadata::expandable_segments() const {
  if (const auto it = root_.find("allocator"); it != root_.end() && it->is_object()) {
    if (JsonText(*it, "policy") == "vmm") return true;
    return JsonText(*it, "settings").find("expandable_segments:True") != std::string::npos;
  }
  const auto old = root_.find("allocator_settings");
  return old != root_.end() && JsonBool(*old, "expandable_segments");
}

bool Metadata::has_convolutions() const {
  for (const nlohmann::json& model : models_) {
    const auto layers = model.is_object() ? model.find("layers") : model.end();
    if (!model.is_object() || layers == model.end() || !layers->is_array()) continue;
    for (const nlohmann::json& layer : *layers) {
      if (JsonText(layer, "class").find("Conv") != std::string::npos) return true;
    }
  }
  return false;
}

bool Metadata::without_hooks() const {
  return root_.contains("allocator") && models_.empty() && optimizers_.empty() && !JsonBool(root_, "hooks");
}

bool Metadata::optimizers_have(const char* key, bool value) const {
  if (optimizers_.empty()) return false;
  for (const nlohmann::json& optimizer : optimizers_) {
    const auto it = optimizer.is_object() ? optimizer.find(key) : optimizer.end();
    if (!optimizer.is_object() || it == optimizer.end() || !it->is_boolean() || it->get<bool>() != value) return false;
  }
  return true;
}

std::optional<uint64_t> Metadata::batch_size() const {
  const uint64_t n = JsonUint(root_, "batch_size");
  return n != 0 ? std::optional<uint64_t>(n) : std::nullopt;
}

std::optional<uint64_t> Metadata::sequence_length() const {
  const uint64_t n = JsonUint(root_, "sequence_length");
  return n != 0 ? std::optional<uint64_t>(n) : std::nullopt;
}

std::optional<uint64_t> Metadata::config(const std::vector<std::string>& keys) const {
  std::vector<const nlohmann::json*> places;
  if (const auto it = root_.find("config"); it != root_.end()) places.push_back(&*it);
  for (const auto& model : models_) {
    if (model.is_object() && model.contains("config")) places.push_back(&model["config"]);
  }
  for (const nlohmann::json* place : places) {
    for (const std::string& key : keys) {
      if (const uint64_t n = JsonUint(*place, key.c_str()); n != 0) return n;
    }
  }
  return std::nullopt;
}

}  // namespace vramledger
