#include "tools/analysis/layer_facts.h"
#include "tools/analysis/reconcile_activations.h"

namespace vramledger {

std::vector<ReconcileLayer> LayerTable(const Metadata& metadata, const std::vector<ActivationCheck>& checks) {
  std::vector<ReconcileLayer> out;
  for (LayerFacts& facts : ReadLayers(metadata)) {
    ReconcileLayer layer;
    layer.path = std::move(facts.path);
    layer.kind = std::move(facts.kind);
    layer.formula = std::move(facts.formula);
    layer.as_formula = facts.as_formula;
    layer.textbook = facts.bytes;
    // The list that has this model: the first in which anything of it lives.
    const std::string model = layer.path.substr(0, layer.path.find('.'));
    for (const ActivationCheck& check : checks) {
      const auto place = check.analytic_by_place.lower_bound(model + ".");
      const bool below =
          place != check.analytic_by_place.end() && std::string_view(place->first).starts_with(model + ".");
      if (!below && !check.analytic_by_place.contains(model)) continue;
      const auto analytic = check.analytic_by_place.find(layer.path), traced = check.traced_by_place.find(layer.path);
      layer.analytic = analytic == check.analytic_by_place.end() ? 0 : analytic->second;
      layer.traced = traced == check.traced_by_place.end() ? 0 : traced->second;
      break;
    }
    out.push_back(std::move(layer));
  }
  return out;
}

}  // namespace vramledger
