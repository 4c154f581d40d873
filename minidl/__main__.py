"""`python -m minidl run -n 4 script.py`: as `minidl run`.   Test: tests/cli/test_main.py"""

import sys

from minidl.cli.main import main

sys.exit(main())
