#include "tools/virtual_device/cudnn/cudnn_real.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

// The folder of libc10_cuda.so, which every PyTorch with CUDA has loaded.
int FindTorch(dl_phdr_info* info, size_t, void* result) {
  const char* name = info->dlpi_name;
  const char* slash = name != nullptr ? std::strrchr(name, '/') : nullptr;
  if (slash == nullptr || std::strcmp(slash, "/libc10_cuda.so") != 0) return 0;
  static_cast<std::string*>(result)->assign(name, static_cast<size_t>(slash - name));
  return 1;
}

void* Load() {
  std::string path;
  if (const char* wanted = std::getenv("VRAMLEDGER_VIRTUAL_DEVICE_CUDNN")) {
    path = wanted;
  } else {
    std::string torch;
    dl_iterate_phdr(FindTorch, &torch);
    if (!torch.empty()) path = torch + "/../../nvidia/cudnn/lib/libcudnn.so.9";
  }
  // By path: the soname is ours. Local, so that nothing else binds to it.
  void* library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = path.empty() ? "no PyTorch with CUDA is loaded" : dlerror();
    std::fprintf(stderr, "vramledger virtual device: the real cuDNN cannot be used (%s)\n", why);
  }
  return library;
}

}  // namespace

extern "C" __attribute__((visibility("hidden"))) void* vd_real(const char* name) {
  static void* library = Load();
  return library != nullptr ? dlsym(library, name) : nullptr;
}
