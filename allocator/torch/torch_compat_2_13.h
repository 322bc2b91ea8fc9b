// PyTorch 2.13: the real begin and end of a graph capture, apart from the routing of requests to a pool; the reserved
// bytes of each private pool; more of the host allocator's settings in a snapshot.
#ifndef VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_2_13_H_
#define VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_2_13_H_

#if VRAMLEDGER_TORCH_VERSION >= 213
#define VRAMLEDGER_TORCH_ROUTES_ARE_CAPTURES false
#define VRAMLEDGER_TORCH_2_13_OVERRIDES                     \
  void markCaptureBegin(c10::DeviceIndex device) override { \
    Core(device).BeginCapture(device);                      \
  }                                                         \
  void markCaptureEnd(c10::DeviceIndex device) override {   \
    Core(device).EndCapture(device);                        \
  }
#define VRAMLEDGER_TORCH_2_13_STATISTICS(to, from)                                \
  for (const auto& [id, stats] : (from).reserved_bytes_by_private_pool) {         \
    (to).reserved_bytes_by_private_pools[{id.first, id.second}] = Convert(stats); \
  }
#define VRAMLEDGER_TORCH_2_13_SNAPSHOT_SETTINGS(to)                \
  (to).max_round_threshold = Common::pinned_max_round_threshold(); \
  (to).max_cached_size = Common::pinned_max_cached_size()
#else
#define VRAMLEDGER_TORCH_ROUTES_ARE_CAPTURES true
#define VRAMLEDGER_TORCH_2_13_OVERRIDES
#define VRAMLEDGER_TORCH_2_13_STATISTICS(to, from) static_cast<void>(0)
#define VRAMLEDGER_TORCH_2_13_SNAPSHOT_SETTINGS(to) static_cast<void>(0)
#endif

#endif  // VRAMLEDGER_ALLOCATOR_TORCH_TORCH_COMPAT_2_13_H_
