"""minidl.memory as editors see it. `make stubs` writes this file."""

from minidl.memory import ledger as ledger
from minidl.memory.ledger import KINDS as KINDS
from minidl.memory.ledger import STATES as STATES
from minidl.memory.ledger import note as note
from minidl.memory.ledger import record as record
from minidl.memory.ledger import report as report
from minidl.memory.ledger import states as states
from minidl.memory.ledger import totals as totals
from minidl.memory.saved_bytes import saved_by_op as saved_by_op
from minidl.memory.saved_bytes import saved_bytes as saved_bytes
