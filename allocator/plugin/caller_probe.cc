#include "allocator/plugin/caller_probe.h"

#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "allocator/plugin/site_memo.h"

namespace vramledger {
namespace {

constexpr int kMaxFrames = 12;


}  // namespace

void CallerProbe::Load() {
  resize_ = FindFunctionRange("libtorch_cuda.so", "_ZN2at6native17resize_bytes_cudaEPN3c1011StorageImplEm");
  struct Ranges {
    Range* cuda;
    Range* cpu;
    Range* c10;
  } ranges{&torch_cuda_, &torch_cpu_, &c10_};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* r = static_cast<Ranges*>(data);
        const std::string_view path = info->dlpi_name != nullptr ? info->dlpi_name : "";
        const std::string_view name = path.substr(path.rfind('/') + 1);
        Range* range = name == "libtorch_cuda.so" ? r->cuda : name == "libtorch_cpu.so" ? r->cpu : name == "libc10.so" ? r->c10 : nullptr;
        if (range == nullptr) return 0;
        uintptr_t begin = UINTPTR_MAX;
        uintptr_t end = 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD) continue;
          begin = std::min<uintptr_t>(begin, info->dlpi_addr + segment.p_vaddr);
          end = std::max<uintptr_t>(end, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
        }
        *range = Range{begin, end};
        return 0;
      },
      &ranges);
}

bool CallerProbe::AskedByLibrary(size_t bytes, uint64_t context) const {
  if (torch_cuda_.end == 0 || torch_cpu_.end == 0) return false;
  return CallerMemo().Answer(bytes, context, [this] { return WalkStack(); });
}

bool CallerProbe::WalkStack() const {
  struct Walk {
    const CallerProbe* probe;
    int frames = 0;
    int cuda_frames = 0;  // frames of libtorch_cuda in a row, the allocator's own two or three first
    bool tensor = false;
  } walk{this};
  ::_Unwind_Backtrace(
      [](_Unwind_Context* context, void* data) -> _Unwind_Reason_Code {
        auto* w = static_cast<Walk*>(data);
        const auto ip = static_cast<uintptr_t>(::_Unwind_GetIP(context));
        if (++w->frames > kMaxFrames) return _URC_END_OF_STACK;
        if (w->probe->resize_.Holds(ip)) {
          // A tensor gets its storage inside that library (index_select, unique and others that learn sizes late).
          w->tensor = true;
          return _URC_END_OF_STACK;
        }
        if (w->probe->torch_cuda_.Holds(ip)) {
          // CUDAPluggableAllocator's malloc and allocate (or raw_alloc); a further frame of that library is the caller.
          return ++w->cuda_frames > w->probe->frames_between_ ? _URC_END_OF_STACK : _URC_NO_REASON;
        }
        w->tensor = w->probe->torch_cpu_.Holds(ip) || w->probe->c10_.Holds(ip);
        return w->tensor || w->cuda_frames > 0 ? _URC_END_OF_STACK : _URC_NO_REASON;
      },
      &walk);
  return !walk.tensor && walk.cuda_frames > frames_between_;
}

}  // namespace vramledger
