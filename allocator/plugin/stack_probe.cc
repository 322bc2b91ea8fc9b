#include "allocator/plugin/stack_probe.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <vector>

#include "absl/debugging/symbolize.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "tracer/format/fast_tls.h"

namespace vramledger {
namespace {

constexpr int kMaxFrames = 48;

// CPython's documented functions, found in the process that loaded us: this library is built without Python.
struct PythonApi {
  int (*is_initialized)() = nullptr;
  int (*is_finalizing)() = nullptr;
  void* (*this_thread)() = nullptr;
  int (*ensure)() = nullptr;
  void (*release)(int) = nullptr;
  void* (*thread_state)() = nullptr;
  void* (*thread_frame)(void*) = nullptr;  // new reference
  void* (*frame_back)(void*) = nullptr;    // new reference
  void* (*frame_code)(void*) = nullptr;    // new reference
  int (*frame_line)(void*) = nullptr;
  void* (*attribute)(void*, const char*) = nullptr;
  const char* (*utf8)(void*) = nullptr;
  void (*decref)(void*) = nullptr;
  void (*clear_error)() = nullptr;
  void (*error_fetch)(void**, void**, void**) = nullptr;
  void (*error_restore)(void*, void*, void*) = nullptr;
  bool complete = false;

  PythonApi() {
    complete = Find("Py_IsInitialized", &is_initialized) && (Find("Py_IsFinalizing", &is_finalizing) || Find("_Py_IsFinalizing", &is_finalizing)) &&
               Find("PyGILState_GetThisThreadState", &this_thread) && Find("PyGILState_Ensure", &ensure) && Find("PyGILState_Release", &release) &&
               Find("PyThreadState_Get", &thread_state) && Find("PyThreadState_GetFrame", &thread_frame) && Find("PyFrame_GetBack", &frame_back) &&
               Find("PyFrame_GetCode", &frame_code) && Find("PyFrame_GetLineNumber", &frame_line) && Find("PyObject_GetAttrString", &attribute) &&
               Find("PyUnicode_AsUTF8", &utf8) && Find("Py_DecRef", &decref) && Find("PyErr_Clear", &clear_error) &&
               Find("PyErr_Fetch", &error_fetch) && Find("PyErr_Restore", &error_restore);
  }
  template <typename F>
  static bool Find(const char* name, F* out) {
    *out = reinterpret_cast<F>(::dlsym(RTLD_DEFAULT, name));
    return *out != nullptr;
  }
};

const PythonApi& Api() {
  static const PythonApi* const api = new PythonApi();
  return *api;
}

void Mix(uint64_t* key, uint64_t value) { *key = absl::HashOf(*key, value); }

std::string_view FileName(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// What is in every stack: the launcher that runs the script, our own hooks, and PyTorch's functions around each forward and each
// operator that the recorder sees.
bool IsPlumbing(std::string_view path, std::string_view function) {
  const std::string_view file = FileName(path);
  if (file == "<frozen runpy>" || file == "runpy.py") return true;
  if (function == "_call_impl" || function == "_wrapped_call_impl" || function == "inner") return path.ends_with("torch/nn/modules/module.py");
  if (function == "__call__" && path.ends_with("torch/_ops.py")) return true;
  const std::string_view folder = path.substr(0, path.size() - file.size());
  return folder.ends_with("/vramledger/") && file.starts_with("_");
}

void AppendFrame(std::string* text, std::string_view frame) {
  if (!text->empty()) text->append(" < ");
  text->append(frame);
}

std::string Attribute(void* object, const char* name) {
  void* const value = Api().attribute(object, name);
  const char* const chars = value != nullptr ? Api().utf8(value) : nullptr;
  std::string out = chars != nullptr ? chars : "?";
  if (value != nullptr) Api().decref(value);
  if (chars == nullptr) Api().clear_error();
  return out;
}

}  // namespace

bool StackProbe::Configure(std::string_view wish) {
  python_ = wish == "python" || wish == "both";
  cpp_ = wish == "cpp" || wish == "both";
  return active() || wish.empty() || wish == "0";
}

// Frames are told apart by the names of their code and the line: an address may come to belong to other code.
void StackProbe::AppendPython(std::string* text, uint64_t* key) {
  const PythonApi& api = Api();
  // A thread without a state of Python's runs no Python frame; one must not be waited for while the interpreter goes down.
  if (!api.complete || !api.is_initialized() || api.is_finalizing() || api.this_thread() == nullptr) return;
  const int gil = api.ensure();
  // What the thread was about to raise stays as it is.
  void *type = nullptr, *value = nullptr, *traceback = nullptr;
  api.error_fetch(&type, &value, &traceback);
  void* frame = api.thread_frame(api.thread_state());
  for (int depth = 0; frame != nullptr && depth < kMaxFrames;) {
    void* const code = api.frame_code(frame);
    const std::string file = Attribute(code, "co_filename"), function = Attribute(code, "co_name");
    api.decref(code);
    if (!IsPlumbing(file, function)) {
      ++depth;
      const std::string entry = absl::StrCat(std::string(FileName(file)), ":", api.frame_line(frame), " ", function);
      Mix(key, absl::HashOf(file, entry));
      AppendFrame(text, entry);
    }
    void* const back = api.frame_back(frame);
    api.decref(frame);
    frame = back;
  }
  if (frame != nullptr) api.decref(frame);
  api.error_restore(type, value, traceback);
  api.release(gil);
}

void StackProbe::AppendCpp(std::string* text, uint64_t* key) {
  void* frames[kMaxFrames];
  // By the unwind tables: PyTorch's wheels keep no frame pointers.
  const int count = ::backtrace(frames, kMaxFrames);
  for (int i = 0; i < count; ++i) Mix(key, reinterpret_cast<uint64_t>(frames[i]));
  if (Known(*key) != 0) return;
  static const bool ready = (absl::InitializeSymbolizer(nullptr), true);
  (void)ready;
  for (int i = 0; i < count; ++i) {
    // A return address may be the first byte of the next function.
    char name[512];
    if (!absl::Symbolize(static_cast<char*>(frames[i]) - 1, name, sizeof(name))) continue;
    // What we are called by begins after our own frames.
    if (std::string_view(name).find("vramledger") == std::string_view::npos) AppendFrame(text, name);
  }
}

uint32_t StackProbe::Known(uint64_t key) {
  std::lock_guard<std::mutex> guard(mutex_);
  const auto it = ids_.find(key);
  return it == ids_.end() ? 0 : it->second;
}

uint32_t StackProbe::Capture(absl::FunctionRef<uint32_t(std::string_view)> intern) {
  // A Python object that dies meanwhile may free and take memory.
  static VRAMLEDGER_FAST_TLS bool busy = false;
  if (busy) return 0;
  busy = true;
  const struct Done {
    ~Done() { busy = false; }
  } done;
  std::string text;
  uint64_t key = 1;
  if (python_) AppendPython(&text, &key);
  if (cpp_) AppendCpp(&text, &key);
  uint32_t id = Known(key);
  if (id == 0 && !text.empty()) {
    id = intern(text);
    std::lock_guard<std::mutex> guard(mutex_);
    ids_[key] = id;
  }
  return id;
}

}  // namespace vramledger
