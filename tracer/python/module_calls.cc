// vramledger._calls: tells the allocator which module's forward runs, at the cost of a few foreign calls rather than of PyTorch's
// global hooks (which send every module call through the slow path of Module._call_impl, 1-2 us each).
//
// torch.nn.Module._call_impl stays the same function object with the same code, so that torch.compile, torch.fx and whatever compares or
// inspects it see no difference; only its vectorcall entry (PEP 590) is replaced by one that surrounds it. All under the GIL.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace {

struct Known {
  PyObject* reference;  // a weak reference: another object may come to live at the same address
  uint32_t name;        // string id of the module's path
};

using Table = absl::flat_hash_map<PyObject*, Known>;

// What attach() was given. The callbacks let pass only what is no Exception (an interrupt, an exit), which then ends the call.
struct State {
  vectorcallfunc original = nullptr;
  PyObject* function = nullptr;
  void (*enter)(uint32_t, int) = nullptr;
  void (*exit)() = nullptr;
  size_t (*depth)() = nullptr;
  void (*failed)() = nullptr;  // the outermost module raised
  PyObject* meet = nullptr;    // (module) -> string id, None if it is to be asked again
  PyObject* root = nullptr;    // (module, args, kwargs) before the outermost module of this thread
  PyObject* result = nullptr;  // (module, args, output) after each, while watched
  bool watch_results = false;
  PyObject* training = nullptr;  // the string
  Table* known = nullptr;
  size_t room = 0;  // modules that `known` was made for
};

State state;

bool Refers(PyObject* reference, PyObject* object) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* there = nullptr;
  if (PyWeakref_GetRef(reference, &there) != 1) {
    PyErr_Clear();
    return false;
  }
  Py_DECREF(there);
  return there == object;
#else
  return PyWeakref_GET_OBJECT(reference) == object;
#endif
}

// The object's own reference without a callback, which is the one that PyWeakref_NewRef gave; its list has it first. That it still has
// says without a look at the reference that the object is the same.
bool HasAsFirst(PyObject* object, PyObject* reference) {
  const Py_ssize_t offset = Py_TYPE(object)->tp_weaklistoffset;
  return offset != 0 && *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset) == reference;
}

void Forget() {
  // Dropping a reference may run code that comes back here.
  const Table old = std::move(*state.known);
  state.known->clear();
  state.room = 0;
  for (const auto& [object, known] : old) Py_DECREF(known.reference);
}

// A new table that takes so many modules without asking for memory; null if there is none. One of absl's whose own growth fails can neither
// be used nor destroyed any more, so none is let grow, and one that fails here goes without its destructor.
Table* TableFor(size_t modules) {
  auto* table = new (std::nothrow) Table();
  if (table == nullptr) return nullptr;
  try {
    table->reserve(modules);
  } catch (const std::bad_alloc&) {
    ::operator delete(table);
    return nullptr;
  }
  return table;
}

// Makes room for more modules, and drops the dead. False, with nothing changed, if out of memory.
bool Sweep() {
  constexpr size_t kLeast = 56;  // they fill one of absl's tables
  // As if all lived: whether they do would be asked anew at every call while memory is short.
  Table* swept = TableFor(std::max(kLeast, 2 * state.known->size()));
  if (swept == nullptr) return false;
  Table* old = std::exchange(state.known, swept);
  for (auto& [object, known] : *old) {
    if (Refers(known.reference, object)) swept->emplace(object, std::exchange(known, Known{}));
  }
  state.room = std::max(kLeast, 2 * swept->size());
  for (const auto& [object, known] : *old) Py_XDECREF(known.reference);
  delete old;
  return true;
}

// Drops an error that is the hooks' own; false for an interrupt or an exit, which stays.
bool Forgiven() {
  if (PyErr_Occurred() == nullptr) return true;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyErr_Clear();
  return true;
}

// The string id of the module's path; 0 when it has none, or with an exception set. `follow`: whether the call is one of the program's.
uint32_t NameOf(PyObject* module, bool* follow) {
  const auto it = state.known->find(module);
  if (it != state.known->end() && (HasAsFirst(module, it->second.reference) || Refers(it->second.reference, module))) return it->second.name;
  PyObject* id = PyObject_CallOneArg(state.meet, module);
  *follow = id != Py_False;
  const bool met = id != nullptr && *follow && PyLong_Check(id);
  const unsigned long name = met ? PyLong_AsUnsignedLong(id) : 0;
  Py_XDECREF(id);
  PyObject* reference = met && !PyErr_Occurred() ? PyWeakref_NewRef(module, nullptr) : nullptr;
  if (reference == nullptr) {
    Forgiven();
    return 0;
  }
  if (state.known->size() >= state.room && !Sweep()) {
    Py_DECREF(reference);
    return 0;  // it will be asked for again
  }
  Known& entry = (*state.known)[module];
  PyObject* stale = entry.reference;
  entry = {reference, static_cast<uint32_t>(name)};
  Py_XDECREF(stale);
  return static_cast<uint32_t>(name);
}

PyObject* Positional(PyObject* const* args, Py_ssize_t count) {
  PyObject* tuple = PyTuple_New(count);
  for (Py_ssize_t i = 0; tuple != nullptr && i < count; ++i) {
    Py_INCREF(args[i]);
    PyTuple_SET_ITEM(tuple, i, args[i]);
  }
  return tuple;
}

PyObject* Keywords(PyObject* const* values, PyObject* names) {
  PyObject* dict = PyDict_New();
  const Py_ssize_t count = names != nullptr ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t i = 0; dict != nullptr && i < count; ++i) {
    if (PyDict_SetItem(dict, PyTuple_GET_ITEM(names, i), values[i]) != 0) PyErr_Clear();
  }
  return dict;
}

// Calls back; what it returns is dropped. False with an exception set that is to end the call.
bool Tell(PyObject* callback, PyObject* module, PyObject* second, PyObject* third) {
  if (second != nullptr && third != nullptr) {
    PyObject* args[] = {module, second, third};
    PyObject* none = PyObject_Vectorcall(callback, args, 3, nullptr);
    Py_XDECREF(none);
  }
  return Forgiven();
}

PyObject* Call(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* names) {
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (count < 1) return state.original(callable, args, nargsf, names);  // it will complain itself
  PyObject* const module = args[0];
  bool follow = true;
  const uint32_t name = NameOf(module, &follow);
  if (PyErr_Occurred()) return nullptr;
  if (!follow) return state.original(callable, args, nargsf, names);
  const bool outermost = state.depth() == 0;
  if (outermost) {
    PyObject* positional = Positional(args + 1, count - 1);
    PyObject* keywords = Keywords(args + count, names);
    const bool goes_on = Tell(state.root, module, positional, keywords);
    Py_XDECREF(positional);
    Py_XDECREF(keywords);
    if (!goes_on) return nullptr;
  }
  int trains = 1;
  if (outermost) {  // which alone decides between forward and eval
    PyObject* training = PyObject_GetAttr(module, state.training);
    trains = training != nullptr ? PyObject_IsTrue(training) : 0;
    Py_XDECREF(training);
    if (!Forgiven()) return nullptr;
  }
  state.enter(name, trains > 0);
  PyObject* output = state.original(callable, args, nargsf, names);
  state.exit();
  if (output == nullptr && state.depth() == 0) state.failed();
  if (state.watch_results && output != nullptr) {
    PyObject* positional = Positional(args + 1, count - 1);
    const bool goes_on = Tell(state.result, module, positional, output);
    Py_XDECREF(positional);
    if (!goes_on) Py_CLEAR(output);
  }
  return output;
}

void SetEntry(PyFunctionObject* function, vectorcallfunc entry) {
#if PY_VERSION_HEX >= 0x030C0000
  PyFunction_SetVectorcall(function, entry);
#else
  function->vectorcall = entry;
#endif
}

PyObject* Attach(PyObject*, PyObject* args) {
  PyObject *function = nullptr, *meet = nullptr, *root = nullptr, *result = nullptr;
  unsigned long long enter = 0, exit = 0, depth = 0, failed = 0;
  if (!PyArg_ParseTuple(args, "O!KKKKOOO", &PyFunction_Type, &function, &enter, &exit, &depth, &failed, &meet, &root, &result)) return nullptr;
#ifdef Py_GIL_DISABLED
  PyErr_SetString(PyExc_RuntimeError, "the table of modules relies on the global interpreter lock");
  return nullptr;
#endif
  if (state.function != nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "already attached");
    return nullptr;
  }
  state.training = PyUnicode_InternFromString("training");
  if (state.training == nullptr) return nullptr;
  state.known = new (std::nothrow) Table();
  if (state.known == nullptr) return PyErr_NoMemory();
  state.enter = reinterpret_cast<void (*)(uint32_t, int)>(static_cast<uintptr_t>(enter));
  state.exit = reinterpret_cast<void (*)()>(static_cast<uintptr_t>(exit));
  state.depth = reinterpret_cast<size_t (*)()>(static_cast<uintptr_t>(depth));
  state.failed = reinterpret_cast<void (*)()>(static_cast<uintptr_t>(failed));
  Py_INCREF(meet);
  Py_INCREF(root);
  Py_INCREF(result);
  Py_INCREF(function);
  state.meet = meet;
  state.root = root;
  state.result = result;
  state.function = function;
  auto* f = reinterpret_cast<PyFunctionObject*>(function);
  state.original = f->vectorcall;
  SetEntry(f, &Call);
  Py_RETURN_NONE;
}

PyObject* WatchResults(PyObject*, PyObject* wish) {
  const int on = PyObject_IsTrue(wish);
  if (on < 0) return nullptr;
  state.watch_results = on != 0;
  Py_RETURN_NONE;
}

PyObject* ForgetNames(PyObject*, PyObject*) {
  if (state.known != nullptr) Forget();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"attach", &Attach, METH_VARARGS,
     "attach(function, enter, exit, depth, failed, meet, root, result): surrounds every call of the function, which is torch.nn.Module._call_impl. enter, exit, depth and "
     "failed are addresses of the allocator's vramledger_enter_module, _exit_module, _module_depth and _forward_failed; meet(module) gives the string id of a module "
     "not seen before (None: ask again; False: leave this call alone), root(module, args, kwargs) precedes a thread's outermost module, result(module, args, output) follows each while watched. Once per process."},
    {"watch_results", &WatchResults, METH_O, "watch_results(on): whether result() is called."},
    {"forget", &ForgetNames, METH_NOARGS, "forget(): asks meet() again for every module."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_calls", "Module calls, told to the allocator.", -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__calls() { return PyModule_Create(&definition); }
