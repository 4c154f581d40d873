"""minidl.elastic as editors see it. `make stubs` writes this file."""

from minidl.elastic import restart as restart
from minidl.elastic.restart import run as run
