// What the generated stubs of a library call: linked into each stand-in.
#include <new>

#include "tools/virtual_device/core/state.h"

// A call that would compute on the device: nothing is computed, but bytes may have changed.
extern "C" __attribute__((visibility("hidden"))) int vd_compute(void*) { return vd::OnLaunch(nullptr); }

// An opaque object that is only passed back. Never freed: they are few, and double destruction stays harmless.
extern "C" __attribute__((visibility("hidden"))) int vd_create(void** made) {
  if (made == nullptr) return vd::kInvalidValue;
  *made = ::operator new(64);
  return 0;
}
