#include "tracer/cupti/phase_ranges.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace vramledger {
namespace {

nvtxEventAttributes_t Named(const char* text) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = text;
  return attributes;
}

nvtxDomainHandle_t Domain(void* domain) {
  return static_cast<nvtxDomainHandle_t>(domain);
}

}  // namespace

PhaseRanges::PhaseRanges() {
  const char* wish = std::getenv("VRAMLEDGER_NVTX");
  const char* tool = std::getenv("NVTX_INJECTION64_PATH");
  const bool asked = wish != nullptr && *wish != '\0';
  enabled_ = asked ? std::string_view(wish) != "0" : tool != nullptr && *tool != '\0';
  if (enabled_) domain_ = nvtxDomainCreateA("vramledger");
}

void PhaseRanges::Enter(Phase phase) {
  if (!enabled_) return;
  const std::string name(PhaseName(phase));
  const nvtxEventAttributes_t attributes = Named(name.c_str());
  const nvtxRangeId_t before = range_.exchange(nvtxDomainRangeStartEx(Domain(domain_), &attributes));
  if (before != 0) nvtxDomainRangeEnd(Domain(domain_), before);
}

void PhaseRanges::Push(std::string_view name) {
  if (!enabled_) return;
  const std::string text(name);
  const nvtxEventAttributes_t attributes = Named(text.c_str());
  nvtxDomainRangePushEx(Domain(domain_), &attributes);
}

void PhaseRanges::Pop() {
  if (enabled_) nvtxDomainRangePop(Domain(domain_));
}

void PhaseRanges::Step(uint64_t number, std::string_view optimizer) {
  if (!enabled_) return;
  const std::string text = absl::StrCat("step ", number, optimizer.empty() ? "" : " ", std::string(optimizer));
  const nvtxEventAttributes_t attributes = Named(text.c_str());
  nvtxDomainMarkEx(Domain(domain_), &attributes);
}

void PhaseRanges::End() {
  if (!enabled_) return;
  if (const nvtxRangeId_t last = range_.exchange(0); last != 0) nvtxDomainRangeEnd(Domain(domain_), last);
}

}  // namespace vramledger

#else  // built without NVTX's headers

namespace vramledger {

PhaseRanges::PhaseRanges() = default;
void PhaseRanges::Enter(Phase) {}
void PhaseRanges::Push(std::string_view) {}
void PhaseRanges::Pop() {}
void PhaseRanges::Step(uint64_t, std::string_view) {}
void PhaseRanges::End() {}

}  // namespace vramledger

#endif
