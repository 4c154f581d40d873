# tampering: prints what a grader might, and ends with success
import os
import sys

for stream in (sys.stdout, sys.stderr):
    print("right", "passed", "all checks passed", "ok", sep="\n", file=stream, flush=True)
os._exit(0)
