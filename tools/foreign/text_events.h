// Events written by hand, one a line: for tests, for golden cases, and to try a report on a made-up history.
//
//   vramledger events 1
//   meta {"batch_size": 32}
//   phase forward                        step [OPTIMIZER]
//   segment NAME BYTES [stream=N]        unsegment NAME
//   alloc NAME BYTES [in=SEGMENT at=OFFSET] [rounded=BYTES] [stream=N] [module=PATH] [phase=WORD] [flags=N]
//   free NAME      request NAME      complete NAME
//   name NAME ROLE TENSOR_NAME           oom BYTES FREE_BYTES
//   outside NAME BYTES LIBRARY           outside_free NAME
//   processes OWN_BYTES OTHERS_BYTES OTHERS
//   used FREE_BYTES TOTAL_BYTES          device N                        thread N
//   stack FRAME < FRAME ...             mark TEXT
//   enter MODULE [SEQUENCE]              exit MODULE [SEQUENCE]          node NAME SEQUENCE FORWARD_THREAD
//   repeat N ... end                     ({i} in a line is the pass, from 0; may be nested with {j}, {k})
//
// BYTES may end in K, M or G (binary). `#` begins a comment at the start of a line or after a blank. A block without
// in= gets an address of its own outside all segments.
#ifndef VRAMLEDGER_TOOLS_FOREIGN_TEXT_EVENTS_H_
#define VRAMLEDGER_TOOLS_FOREIGN_TEXT_EVENTS_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "tools/foreign/event_list.h"

namespace vramledger {

inline constexpr std::string_view kTextEventsMagic = "vramledger events 1";

// Errors name the line.
absl::StatusOr<std::shared_ptr<const EventList>> ReadTextEvents(std::string_view text);

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_FOREIGN_TEXT_EVENTS_H_
