// Which string ids are the two sites with a meaning of their own. Ids become known while the source is read.
#ifndef VRAMLEDGER_TOOLS_ANALYSIS_SITE_IDS_H_
#define VRAMLEDGER_TOOLS_ANALYSIS_SITE_IDS_H_

#include <cstdint>

#include "tools/foreign/event_list.h"

namespace vramledger {

struct SiteIds {
  uint32_t workspace = 0;
  uint32_t before = 0;

  void See(const EventSource& source, uint32_t id) {
    while (highest_ < id) {
      const std::string_view text = source.String(++highest_);
      if (text == kWorkspaceSite) workspace = highest_;
      if (text == kBeforeRecordingSite) before = highest_;
    }
  }

 private:
  uint32_t highest_ = 0;
};

}  // namespace vramledger

#endif  // VRAMLEDGER_TOOLS_ANALYSIS_SITE_IDS_H_
