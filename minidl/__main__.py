"""`python -m minidl run -n 4 script.py` does the same as `minidl run -n 4 script.py`.

Test: tests/cli/test_main.py
"""

import sys

from minidl.cli.main import main

sys.exit(main())
