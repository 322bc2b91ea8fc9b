// The pure form of use (a script that plugs the allocator in by hand and sets VRAMLEDGER_TRACE) has nobody to register PyTorch's
// hooks. The allocator then asks the interpreter of its process to do it, if the package vramledger can be imported there.
#ifndef VRAMLEDGER_ALLOCATOR_PLUGIN_PYTHON_HOOKS_H_
#define VRAMLEDGER_ALLOCATOR_PLUGIN_PYTHON_HOOKS_H_

namespace vramledger {

// Queues the registration on the main thread's interpreter, to run soon after this call; needs no GIL. False when the process
// has no Python, or VRAMLEDGER_HOOKS=0 forbids it. Without hooks the signals alone decide phases, and nothing has a name.
bool RequestPythonHooks();

}  // namespace vramledger

#endif  // VRAMLEDGER_ALLOCATOR_PLUGIN_PYTHON_HOOKS_H_
