#include "tools/analysis/layer_facts.h"

#include <algorithm>

#include "tools/estimate/memory_estimate.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

using nlohmann::json;

// One number for each of `n` dimensions: from a list, or the same for all.
std::vector<uint64_t> Numbers(const json& object, const char* key, size_t n, uint64_t fallback) {
  std::vector<uint64_t> out(n, fallback);
  const auto it = object.find(key);
  if (it == object.end()) return out;
  if (it->is_number_unsigned()) return std::vector<uint64_t>(n, it->get<uint64_t>());
  if (!it->is_array()) return out;
  for (size_t i = 0; i < n && i < it->size(); ++i) {
    if ((*it)[i].is_number_unsigned()) out[i] = (*it)[i].get<uint64_t>();
  }
  return out;
}

std::string ConvolutionText(uint64_t in, uint64_t kernel, uint64_t stride, uint64_t pad, uint64_t size) {
  const std::string padded = pad == 0 ? std::to_string(in) : Cat(in, " + 2 x ", pad);
  return Cat("(", padded, " - ", kernel, ")", stride == 1 ? std::string() : Cat(" / ", stride), " + 1 = ", size);
}

std::string TransposedText(uint64_t in, uint64_t kernel, uint64_t stride, uint64_t pad, uint64_t size) {
  return Cat("(", in, " - 1) x ", stride, " + ", kernel, pad == 0 ? std::string() : Cat(" - 2 x ", pad), " = ", size);
}

// Sets the formula and, by it, the size of the output.
void ApplyFormula(const json& layer, bool transposed, LayerFacts* facts) {
  const std::vector<uint64_t> in = JsonUints(layer, "in_shape"), out = JsonUints(layer, "out_shape");
  if (out.size() < 3 || in.size() != out.size()) {
    facts->convolution = false;
    return;
  }
  const size_t n = out.size() - 2;
  const std::vector<uint64_t> kernel = Numbers(layer, "kernel", n, 1), pad = Numbers(layer, "padding", n, 0),
                              dilation = Numbers(layer, "dilation", n, 1);
  std::vector<uint64_t> stride = Numbers(layer, "stride", n, 1);
  // Pooling's stride is its kernel where none is given.
  if (!facts->convolution && !layer.contains("stride")) stride = kernel;
  facts->bytes = out[0] * out[1] * JsonUint(layer, "element_bytes", 4);
  for (size_t d = 0; d < n; ++d) {
    const uint64_t wide = (kernel[d] - 1) * dilation[d] + 1;
    uint64_t size = 0;
    std::string text;
    if (transposed) {
      const uint64_t whole = (in[d + 2] - 1) * stride[d] + wide;
      size = whole - std::min(2 * pad[d], whole);
      text = TransposedText(in[d + 2], wide, stride[d], pad[d], size);
    } else {
      size = ConvolutionOutput(in[d + 2], wide, stride[d], pad[d]);
      text = ConvolutionText(in[d + 2], wide, stride[d], pad[d], size);
    }
    if (!Contains(facts->formula, text)) facts->formula += (facts->formula.empty() ? "" : "; ") + text;
    facts->as_formula &= size == out[d + 2];
    facts->bytes *= size;
  }
}

}  // namespace

std::vector<LayerFacts> ReadLayers(const Metadata& metadata) {
  std::vector<LayerFacts> out;
  for (const json& model : metadata.models()) {
    const auto layers = model.is_object() ? model.find("layers") : model.end();
    if (layers == model.end() || !layers->is_array()) continue;
    for (const json& layer : *layers) {
      if (!layer.is_object()) continue;
      LayerFacts facts;
      const std::string name = JsonText(layer, "name");
      facts.path = name.empty() ? JsonText(model, "name") : Cat(JsonText(model, "name"), ".", name);
      facts.kind = JsonText(layer, "class");
      const std::string_view kind = facts.kind;
      facts.convolution = kind.starts_with("Conv");
      facts.bytes = JsonUint(layer, "element_bytes", 4);
      for (const uint64_t size : JsonUints(layer, "out_shape")) facts.bytes *= size;
      if (facts.convolution || kind.starts_with("MaxPool") || kind.starts_with("AvgPool"))
        ApplyFormula(layer, kind.starts_with("ConvTranspose"), &facts);
      out.push_back(std::move(facts));
    }
  }
  return out;
}

}  // namespace vramledger
