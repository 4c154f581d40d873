"""`python -m minidl run -n 4 script.py` does the same as `minidl run -n 4 script.py`.

Test: tests/cli/test_main.py
"""

import signal
import sys


def main():
    """Runs the command in sys.argv. Returns the exit status.

    Ctrl-C ends the process without a traceback while the modules of the command are imported.
    Python cannot promise this: it ignores a KeyboardInterrupt that is raised in a callback of the
    import system. Then `minidl run` would start, although the user has ended it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from minidl.cli.main import main as command  # after the line above

    return command()


if __name__ == "__main__":
    sys.exit(main())
