// PyTorch 2.14: notes on live blocks after the fact.
#ifndef VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_2_14_H_
#define VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_2_14_H_

#if VRAMLEDGER_TORCH_VERSION >= 214
#define VRAMLEDGER_TORCH_2_14_OVERRIDES                                             \
  bool supportsUserMetadata() override {                                            \
    return true;                                                                    \
  }                                                                                 \
  void annotateMemory(const void* address, const std::string& text) override {      \
    const TorchEvents::ContextScope context(events_, native::RecordContext::ALLOC); \
    events_.Annotate(Core(), address, text);                                        \
  }
#else
#define VRAMLEDGER_TORCH_2_14_OVERRIDES
#endif

#endif  // VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_2_14_H_
