// For C++ programs on LibTorch, whose optimizers and modules announce nothing: put vramledger's allocator in place and
// say what the program is doing. Link libvramledger_torch.so; needs no other header of vramledger, and none of PyTorch.
//
//   std::string error = vramledger::Install("run.vlt");      // before CUDA is used
//   ...
//   { vramledger::PhaseScope scope(vramledger::ScopePhase::kOptimizer, "Adam"); optimizer.step(); }
//   vramledger::StepDone();
//
// Thread rule: Install once, from one thread; the rest from any thread. A scope belongs to the thread that opened it
// and is closed there, in reverse order. Nothing throws.
#ifndef VRAMLEDGER_PHASE_SCOPE_H_
#define VRAMLEDGER_PHASE_SCOPE_H_

#include <cstddef>
#include <cstdint>
#include <string>

extern "C" {
size_t vramledger_open_trace(const char* path, char* error, size_t capacity);
size_t vramledger_torch_install(char* error, size_t capacity);
void vramledger_close_trace();
uint32_t vramledger_intern(const char* text);
void vramledger_begin_scope(int phase, uint32_t name);
void vramledger_end_scope();
void vramledger_enter_module(uint32_t name, int training);
void vramledger_exit_module();
int vramledger_name(void* address, int role, uint32_t name, uint64_t bytes);
void vramledger_step_done(uint32_t optimizer);
void vramledger_hooks_active(int active);
}

namespace vramledger {

// The phases that a program may announce; forward and backward are told by ModuleScope and by autograd itself.
enum class ScopePhase : int {
  kNamed = 0,  // leaves the phase as it is, and names the stretch
  kLoad = 1,
  kData = 2,
  kOptimizer = 6,
  kZeroGrad = 7,
  kEval = 8,
  kSave = 9,
  kCommunication = 10,
  kIdle = 11,
};

// What a storage holds, for Name().
enum class StorageRole : int {
  kParameter = 1,
  kBuffer = 2,
  kGradient = 3,
  kOptimizerState = 4,
  kInput = 5,
  kOutput = 6
};

// Makes vramledger PyTorch's CUDA allocator, and writes a trace unless `path` is empty. The error is one sentence;
// empty = done.
inline std::string Install(const std::string& path) {
  char error[4096] = "";
  if (!path.empty() && vramledger_open_trace(path.c_str(), error, sizeof(error)) != 0) return error;
  if (vramledger_torch_install(error, sizeof(error)) != 0) return error;
  vramledger_hooks_active(1);
  return "";
}

// Everything this thread allocates while it lives belongs to the phase.
class PhaseScope {
 public:
  explicit PhaseScope(ScopePhase phase, const char* name = "") {
    vramledger_begin_scope(static_cast<int>(phase), *name != '\0' ? vramledger_intern(name) : 0);
  }
  ~PhaseScope() { vramledger_end_scope(); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;
};

// The forward of a module: forward phase when `training`, else evaluation.
class ModuleScope {
 public:
  explicit ModuleScope(const char* name, bool training = true) {
    vramledger_enter_module(vramledger_intern(name), training ? 1 : 0);
  }
  ~ModuleScope() { vramledger_exit_module(); }
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;
};

// Says what the storage that begins at `address` holds; `bytes` is its size. False if it is no live block of the
// allocator.
inline bool Name(void* address, StorageRole role, const char* name, uint64_t bytes) {
  return vramledger_name(address, static_cast<int>(role), vramledger_intern(name), bytes) != 0;
}

// A training step has ended.
inline void StepDone(const char* optimizer = "optimizer") {
  vramledger_step_done(vramledger_intern(optimizer));
}

}  // namespace vramledger

#endif  // VRAMLEDGER_PHASE_SCOPE_H_
