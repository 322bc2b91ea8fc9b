// Thread-local words read at every allocation.
#ifndef VRAMLEDGER_TRACER_FORMAT_FAST_TLS_H_
#define VRAMLEDGER_TRACER_FORMAT_FAST_TLS_H_

// The initial-exec model reads the word in one instruction, but takes it from the little space the loader keeps for libraries opened late. So
// it is for single words (five in all), never for a whole file: std::call_once and the like would draw libstdc++'s own thread-locals into
// that space, and the library would not load into a process that already has PyTorch.
#define VRAMLEDGER_FAST_TLS __attribute__((tls_model("initial-exec"))) thread_local

#endif  // VRAMLEDGER_TRACER_FORMAT_FAST_TLS_H_
