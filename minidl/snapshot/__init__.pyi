"""minidl.snapshot as editors see it. `make stubs` writes this file."""

from minidl.snapshot import behind as behind
from minidl.snapshot import folder as folder
from minidl.snapshot import hugging_face as hugging_face
from minidl.snapshot import snapshot as snapshot
from minidl.snapshot.behind import Behind as Behind
from minidl.snapshot.folder import at_step as at_step
from minidl.snapshot.folder import latest as latest
from minidl.snapshot.folder import steps as steps
from minidl.snapshot.hugging_face import from_hugging_face as from_hugging_face
from minidl.snapshot.snapshot import SnapshotError as SnapshotError
from minidl.snapshot.snapshot import load as load
from minidl.snapshot.snapshot import save as save
