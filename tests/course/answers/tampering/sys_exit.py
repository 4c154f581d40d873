# tampering: ends the process with the status of success
import sys

sys.exit(0)
