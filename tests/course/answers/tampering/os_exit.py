# tampering: ends the process with the status of success, past every handler
import os

os._exit(0)
