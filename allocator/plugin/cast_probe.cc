#include "allocator/plugin/cast_probe.h"

#include <dlfcn.h>
#include <unwind.h>

#include "allocator/plugin/site_memo.h"

namespace vramledger {
namespace {

constexpr int kMaxFrames = 64;


}  // namespace

void CastProbe::Load() {
  cast_ = FindFunctionRange("libtorch_cpu.so", "_ZN2at8autocast11cached_castEN3c1010ScalarTypeERKNS_6TensorENS1_10DeviceTypeE");
  void* cpu = ::dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  if (cpu == nullptr || cast_.end == 0) return;
  enter_ = reinterpret_cast<int (*)()>(::dlsym(cpu, "_ZN2at8autocast17increment_nestingEv"));
  leave_ = reinterpret_cast<int (*)()>(::dlsym(cpu, "_ZN2at8autocast17decrement_nestingEv"));
}

bool CastProbe::Casts(size_t bytes, uint64_t context) const {
  if (enter_ == nullptr || leave_ == nullptr) return false;
  // Inside a cast autocast reads as disabled; only its depth of nesting on this thread, a plain number, says that it is on.
  enter_();
  if (leave_() == 0) return false;
  return CastMemo().Answer(bytes, context, [this] { return WalkStack(); });
}

bool CastProbe::WalkStack() const {
  struct Walk {
    FunctionRange cast;
    int frames = 0;
    bool found = false;
  } walk{cast_};
  ::_Unwind_Backtrace(
      [](_Unwind_Context* context, void* data) -> _Unwind_Reason_Code {
        auto* w = static_cast<Walk*>(data);
        w->found = w->cast.Holds(static_cast<uintptr_t>(::_Unwind_GetIP(context)));
        return w->found || ++w->frames > kMaxFrames ? _URC_END_OF_STACK : _URC_NO_REASON;
      },
      &walk);
  return walk.found;
}

}  // namespace vramledger
