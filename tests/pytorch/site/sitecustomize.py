"""For the Python processes that PyTorch's tests start: the allocator that the test itself runs with."""

import os

way = os.environ.get("VRAMLEDGER_TEST_WAY", "native")
if way != "native":
    import vramledger

    vramledger.install(mode=way)
