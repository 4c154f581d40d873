# tampering: a fork: the parent ends with success, the child sleeps
import os
import time

if os.fork():
    os._exit(0)
time.sleep(1)
os._exit(0)
