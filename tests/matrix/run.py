"""Runs the scripts of the matrix, each in a process of its own with its own trace, which share one import of PyTorch.

    run.py FOLDER [NAME...]      FOLDER/N.vlt for the Nth; prints a JSON line for each: name, options, trace, sums of its walk, or its error
"""

import json
import os
import sys
import time
import traceback

import language
import others
import torch
import vision

import vramledger

CASES = {**language.CASES, **vision.CASES, **others.CASES}


def mode_for(name):
    """The plug-in, except where PyTorch lets none serve: from 2.15 on NCCL's process group, as it goes, asks the allocator to detach its
    hook, which PyTorch refuses a plug-in; raised in a destructor, that ends the process.
    """
    refused = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
    return "torch" if refused and name in others.PROCESS_GROUPS else "plugin"


def child(name, options, function, trace, out):
    result = {"name": name, "options": options, "trace": trace}
    begin = time.monotonic()
    try:
        vramledger.install(trace=trace, mode=mode_for(name))
        result["walked"] = function().to_json()
    except BaseException:
        result["error"] = traceback.format_exc()
    result["seconds"] = round(time.monotonic() - begin, 2)
    os.write(out, (json.dumps(result) + "\n").encode())
    vramledger.close()


def main():
    folder, *wanted = sys.argv[1:]
    for index, (name, (options, function)) in enumerate(CASES.items()):
        if wanted and name not in wanted:
            continue
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            out = os.dup(1)
            os.dup2(2, 1)  # whatever the script prints
            child(name, options, function, f"{folder}/{index}.vlt", out)
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(process, 0)
        if status != 0:
            print(json.dumps({"name": name, "options": options, "error": f"ended with status {status}"}), flush=True)


if __name__ == "__main__":
    main()
