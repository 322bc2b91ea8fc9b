"""python -m vramledger run [--trace FILE] train.py ...: run a training script, unchanged, on vramledger's allocator."""

import argparse
import os
import runpy
import sys
from pathlib import Path

from . import __version__, _children
from ._install import MODES, POLICIES, InstallError, installed, installed_by_launcher, trace_name
from ._launch import device_report_is_open, install_or_less, name_device_report, say


def _default_trace(script):
    rank = os.environ.get("RANK")
    return f"{Path(script).stem or 'trace'}{'.rank' + rank if rank else ''}.vlt"


def _why_no_trace(path):
    """Why no trace can be written there, None if one can."""
    path = Path(path)
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder '{folder}' for the trace '{path}'"
    if path.is_dir():
        return f"the trace '{path}' is a folder"
    if path.exists() and not path.is_file():
        return f"the trace '{path}' cannot be written: it is no regular file"
    # A trace that stands there is replaced, not written into.
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the trace '{path}' cannot be written: no permission"
    return None


def _run(options):
    if not options.module and not Path(options.script).is_file():
        say(f"there is no script '{options.script}'")
        return 2
    if installed() is not None:
        say("`run` inside `vramledger dryrun` has no effect: dryrun has chosen trace, mode and policy (dryrun --allocator native leaves them to run)")
        _run_script(options)
        return 0
    trace = named = None
    names_device_report = False
    if not options.no_trace:
        named = options.trace or _default_trace(options.script)
        trace = trace_name(named)
        if (reason := _why_no_trace(trace)) is not None:
            say(reason)
            return 2
        if names_device_report := device_report_is_open():
            name_device_report(trace)
    # Where the allocator cannot be put in place, the training run is still worth more than its trace.
    if options.stacks:
        os.environ["VRAMLEDGER_STACKS"] = options.stacks  # read when the library is loaded
    chosen = {"hooks": not options.no_hooks, "mode": options.mode, "policy": options.policy}
    command = [options.script, *options.arguments]
    try:
        library = install_or_less(trace, **chosen)
    except InstallError as error:
        say(f"{error}; the script runs without vramledger")
        library = None
    else:
        installed_by_launcher()
        library.metadata({"command": command})
        # The script may change the folder before it starts others.
        _children.follow({"trace": named and os.path.abspath(named), "names_device_report": names_device_report, "command": command, "install": chosen})
    try:
        _run_script(options)
    except KeyboardInterrupt:
        # The interpreter ends by the signal then, without C's exit handlers.
        if library is not None:
            library.close_trace()
        raise
    return 0


def _run_script(options):
    sys.argv = [options.script, *options.arguments]
    if options.module:
        sys.path[0] = os.getcwd()
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(options.script).resolve().parent)
        runpy.run_path(options.script, run_name="__main__")


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m vramledger", description=__doc__)
    parser.add_argument("--version", action="version", version=f"vramledger {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a training script on vramledger's allocator",
                              epilog="example: python -m vramledger run --trace bert.vlt train.py --batch 32")
    run.add_argument("--trace", help="where to write the trace (default: the script's name with .vlt; %%p is the process id, %%r the RANK; "
                     "processes that multiprocessing spawns write NAME.process1.vlt ... beside it)")
    run.add_argument("--mode", choices=MODES, help="torch: an allocator of PyTorch's own kind (default where its library was built); plugin: through PyTorch's "
                     "plug-in interface; observe: watch PyTorch's own allocator and replace nothing")
    run.add_argument("--policy", choices=POLICIES, help="native: PyTorch's own, to the byte (default); vmm: one that does not fragment")
    run.add_argument("--no-trace", action="store_true", help="account, but write no trace")
    run.add_argument("--no-hooks", action="store_true", help="register no PyTorch hooks: phases from the signals alone, no names")
    run.add_argument("--stacks", choices=("python", "cpp", "both"),
                     help="record the stack of every allocation: python, cpp or both (modes torch and plugin; slow: 5-50 us each)")
    run.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module name")
    run.add_argument("script")
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.policy and options.mode == "observe":
        run.error("mode observe watches PyTorch's own allocator, whose policy is PyTorch's: leave --policy out")
    if options.no_trace and options.trace:
        run.error(f"--no-trace and --trace {options.trace} contradict each other")
    if options.no_trace and options.stacks:
        run.error("--stacks records into the trace, and --no-trace writes none: leave one of them out")
    return _run(options)


if __name__ == "__main__":
    sys.exit(main())
