"""For the Python processes that PyTorch's tests start: the allocator that the test itself runs with, once they have imported torch themselves, which reads
settings that they make before."""

import importlib.machinery
import os
import sys


class InstallAfterTorch:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(cls)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def execute_and_install(module):
            execute(module)
            import vramledger

            vramledger.install(mode=os.environ["VRAMLEDGER_TEST_WAY"])

        spec.loader.exec_module = execute_and_install
        return spec


if os.environ.get("VRAMLEDGER_TEST_WAY", "native") != "native":
    sys.meta_path.insert(0, InstallAfterTorch)
