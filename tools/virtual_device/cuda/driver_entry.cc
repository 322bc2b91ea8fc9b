// Where the other libraries ask for functions by name.
#include <dlfcn.h>

#include "tools/virtual_device/cuda/driver.h"

namespace {
// A handle on this library, so that a name is looked up here and nowhere else.
void* Self() {
  static void* self = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&Self), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  return self;
}
}  // namespace

#undef cuGetProcAddress
extern "C" {

// The header's #defines are followed by the generated plain names, so a plain name gives the current form.
CUresult cuGetProcAddress_v2(const char* symbol, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
  *function = symbol != nullptr ? dlsym(Self(), symbol) : nullptr;
  if (status != nullptr) *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// Private tables of the driver: none is ever offered, whoever asks.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
  if (table != nullptr) *table = nullptr;
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // extern "C"
