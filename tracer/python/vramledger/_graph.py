"""Reads of the autograd graph that take PyTorch's own headers, by the functions of libvramledger_torch.so. Mode plugin uses them too, where that library
was built for the PyTorch in use; elsewhere backward's allocations carry no module, and gradients are named from Python."""

import ctypes

import torch

from ._library import GRADIENT, LibraryError, torch_library_path


class Graph:
    """Raises LibraryError where the library was not built for this PyTorch."""

    def __init__(self, library):
        try:
            # With the GIL held: another thread could drop a gradient while it is looked at.
            c = ctypes.PyDLL(str(torch_library_path(torch.__version__)))
            self._watch, self._forget, self._name = (
                getattr(c, f"vramledger_torch_{name}") for name in ("watch_parameters", "forget_parameters", "name_gradients"))
            library.set_node_reader(ctypes.cast(c.vramledger_torch_current_node, ctypes.c_void_p))
        except AttributeError as error:
            raise LibraryError(f"the libraries of vramledger are of different versions ({error}): build them again") from None
        self._watch.restype, self._watch.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._forget.restype, self._forget.argtypes = None, [ctypes.c_void_p]
        self._name.restype, self._name.argtypes = ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        # The function by which this library is told of a name, whichever mode it serves.
        self._tell = ctypes.c_void_p(library.address("vramledger_name"))

    def watch(self, parameters, names):
        """`parameters`: tensors; `names`: string ids of their gradients' names."""
        return _Watched(self, parameters, names)


class _Watched:
    """Parameters, held weakly, whose gradients are named in one call. Not for use from several threads at once."""

    def __init__(self, graph, parameters, names):
        count = len(names)
        self._graph = graph
        # TensorImpl addresses: PyTorch's own way to hand a tensor to C++ (torch.Tensor._cdata).
        self._handle = graph._watch((ctypes.c_void_p * count)(*(p._cdata for p in parameters)), (ctypes.c_uint32 * count)(*names), count)
        if not self._handle:
            raise MemoryError
        self._others = (ctypes.c_uint32 * max(count, 1))()

    def name_gradients(self):
        """Returns the indices of the parameters whose gradient Python is to take apart (sparse or distributed ones)."""
        odd = self._graph._name(self._handle, self._graph._tell, GRADIENT, self._others)
        return self._others[:odd]

    def __del__(self):
        if getattr(self, "_handle", None):
            self._graph._forget(self._handle)
