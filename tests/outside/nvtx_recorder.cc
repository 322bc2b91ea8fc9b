// A tool as NVTX_INJECTION64_PATH names one: writes the ranges and marks of the domain "vramledger" to the file that
// NVTX_RECORDER_FILE names, a line each.
#include <nvtx3/nvToolsExt.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace {

std::mutex lock;
std::atomic<uint64_t> next_range{1};
int domain_of_ours = 0;

void Write(const char* verb, uint64_t range, const char* name) {
  const std::lock_guard<std::mutex> guard(lock);
  const char* path = std::getenv("NVTX_RECORDER_FILE");
  if (path == nullptr) return;
  std::FILE* out = std::fopen(path, "a");
  if (out == nullptr) return;
  std::fprintf(out, "%s %llu %s\n", verb, static_cast<unsigned long long>(range), name);
  std::fclose(out);
}

bool Ours(nvtxDomainHandle_t domain) { return domain == reinterpret_cast<nvtxDomainHandle_t>(&domain_of_ours); }

nvtxDomainHandle_t NVTX_API CreateDomain(const char* name) {
  return std::strcmp(name, "vramledger") == 0 ? reinterpret_cast<nvtxDomainHandle_t>(&domain_of_ours) : nullptr;
}
nvtxRangeId_t NVTX_API Start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  if (!Ours(domain)) return 0;
  const uint64_t range = next_range.fetch_add(1);
  Write("start", range, event->message.ascii);
  return range;
}
void NVTX_API End(nvtxDomainHandle_t domain, nvtxRangeId_t range) {
  if (Ours(domain)) Write("end", range, "");
}
int NVTX_API Push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  if (Ours(domain)) Write("push", 0, event->message.ascii);
  return 0;
}
int NVTX_API Pop(nvtxDomainHandle_t domain) {
  if (Ours(domain)) Write("pop", 0, "");
  return 0;
}
void NVTX_API Mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  if (Ours(domain)) Write("mark", 0, event->message.ascii);
}

template <typename Function>
void Put(NvtxFunctionTable table, NvtxCallbackIdCore2 id, Function function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  if (size <= NVTX_CBID_CORE2_DomainCreateA) return 0;
  Put(table, NVTX_CBID_CORE2_DomainMarkEx, Mark);
  Put(table, NVTX_CBID_CORE2_DomainRangeStartEx, Start);
  Put(table, NVTX_CBID_CORE2_DomainRangeEnd, End);
  Put(table, NVTX_CBID_CORE2_DomainRangePushEx, Push);
  Put(table, NVTX_CBID_CORE2_DomainRangePop, Pop);
  Put(table, NVTX_CBID_CORE2_DomainCreateA, CreateDomain);
  return 1;
}
