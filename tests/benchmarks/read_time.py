"""What a report costs to read a trace: read_time.py VRAMLEDGER TRACE > READING.json. The best of RUNS runs: other work on the machine only adds."""

import json
import os
import resource
import subprocess
import sys
import time

RUNS = int(os.environ.get("RUNS", "5"))


def main():
    tool, trace = sys.argv[1:3]
    seconds = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        done = subprocess.run([tool, "report", trace, "--json"], stdout=subprocess.PIPE, check=True)
        seconds.append(time.perf_counter() - begin)
    source = json.loads(done.stdout)["source"]
    json.dump({"events": source["events"], "allocations": source["allocations"], "file_bytes": os.path.getsize(trace), "seconds": min(seconds), "runs": RUNS,
               "peak_memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}, sys.stdout, indent=1)


main()
