'''Brings old names in a student's files up to date, and prints a sentence for each change.

    work/06_ring.py                    becomes work/07_ring.py, and its exercise 06a becomes 07a
    from minidl.tutorial import say    becomes from minidl.course.tutorial import say

`minidl exercise`, `check`, `solution`, `progress`, `class` and `notebook` do this first. So an old
file is never graded as another exercise. If a file with the new name also exists, the old file is
not changed. In a command, 06 or 06a always means the tutorial that has the number 06 today.

Test: tests/course/test_renamed.py
'''

import re

from minidl.text import tr

TUTORIALS = {  # {old name: the name of today}
    "04_amp": "05_amp",
    "05_memory": "06_memory",
    "06_ring": "07_ring",
    "07_overlap": "08_overlap",
    "08_topologies": "09_topologies",
    "09_parameter_server": "10_parameter_server",
    "10_zero": "11_zero",
    "11_offload": "12_offload",
    "12_tensor_parallel": "13_tensor_parallel",
    "13_pipeline": "14_pipeline",
    "14_hybrid_3d": "15_hybrid_3d",
    "15_dgc": "16_dgc",
    "16_local_sgd": "17_local_sgd",
    "17_large_batch": "18_large_batch",
    "18_profile": "19_profile",
    "19_inference": "20_inference",
    "20_fault_tolerance": "21_fault_tolerance",
    "21_float": "04_float",
}
MODULES = {  # {the name that tutorials once imported: the module of today}
    "minidl.amp": "minidl.precision.amp",
    "minidl.doctor": "minidl.cli.doctor",
    "minidl.exercise": "minidl.course.exercise",
    "minidl.grad_scaler": "minidl.precision.grad_scaler",
    "minidl.memory_predict": "minidl.memory.predict",
    "minidl.recompute": "minidl.memory.recompute",
    "minidl.tutorial": "minidl.course.tutorial",
    "minidl.comm.background": "minidl.comm.transport.background",
    "minidl.comm.ledger": "minidl.comm.observe.ledger",
    "minidl.comm.links": "minidl.comm.transport.links",
    "minidl.comm.links_text": "minidl.comm.transport.links_text",
    "minidl.comm.scheduler": "minidl.comm.transport.scheduler",
    "minidl.comm.sim": "minidl.comm.transport.sim",
    "minidl.comm.throttled": "minidl.comm.transport.throttled",
    "minidl.comm.watch": "minidl.comm.observe.watch",
    "minidl.cuda.cpu": "minidl.cuda.host.cpu",
    "minidl.parallel.bucket": "minidl.parallel.data.bucket",
    "minidl.parallel.data_parallel": "minidl.parallel.data.data_parallel",
    "minidl.parallel.flat": "minidl.parallel.data.flat",
    "minidl.parallel.lanes": "minidl.parallel.zero.lanes",
    "minidl.parallel.offload": "minidl.parallel.zero.offload",
    "minidl.parallel.param_rules": "minidl.parallel.server.rules",
    "minidl.parallel.param_server": "minidl.parallel.server.server",
    "minidl.parallel.param_shards": "minidl.parallel.server.shards",
    "minidl.parallel.param_worker": "minidl.parallel.server.worker",
    "minidl.parallel.zero3": "minidl.parallel.zero.zero3",
}
IMPORT = re.compile(r"^([ \t]*)from (minidl(?:\.\w+)*) import ([\w, ]+)$", re.M)


def bring_up_to_date(folder):
    """Renames and rewrites the Python files in `folder`. Prints each change."""
    for old, new in TUTORIALS.items():
        path, today = folder / f"{old}.py", folder / f"{new}.py"
        if path.exists() and today.exists():
            print(tr(f"{path} is not changed: {old} is called {new} now, but {today} already "
                     "exists. Remove the file that you do not need"), flush=True)
        elif path.is_file():
            text = path.read_text(encoding="utf-8", errors="surrogateescape")
            today.write_text(_renumbered(text, old[:2], new[:2]), encoding="utf-8",
                             errors="surrogateescape")
            path.unlink()
            (folder / "progress.json").unlink(missing_ok=True)  # it has verdicts for old numbers
            print(tr(f"renamed {path} to {today}: {old} is called {new} now"), flush=True)
    for path in sorted(folder.glob("*.py")):
        if path.is_file():  # reading a named pipe would wait for ever
            update_imports(path)


def update_imports(path):
    """Replaces old names of modules in the imports of a Python file. Prints each replaced name."""
    before = path.read_text(encoding="utf-8", errors="surrogateescape")
    text = before
    for old, new in MODULES.items():
        text = re.sub(rf"(?<=\bfrom ){re.escape(old)}(?= import )", new, text)
    text = IMPORT.sub(_one_import, text)
    if text == before:
        return
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    changed = [old for old in MODULES if _imports(before, old) and not _imports(text, old)]
    names = ", ".join(f"{old} is called {MODULES[old]} now" for old in changed)
    print(tr(f"updated the imports of {path}: {names}"), flush=True)


def _renumbered(text, old, new):
    return re.sub(rf"(exercise|练习) {old}(?=[a-z])", rf"\1 {new}", text)


def _one_import(found):
    """Returns an import, such as `from minidl import amp, nn`, with the module names of today.
    found: the match of a regular expression with the old import. A name that is now in another
    module gets its own line."""
    indent, package, names = found.groups()
    names = [name.strip() for name in names.split(",")]
    moved = [name for name in names if f"{package}.{name}" in MODULES]
    stayed = [name for name in names if name not in moved]
    imports = [(package, ", ".join(stayed))] if stayed else []
    for name in moved:
        folder, _, file = MODULES[f"{package}.{name}"].rpartition(".")
        imports.append((folder, file if name == file else file + " as " + name))
    return "\n".join(indent + "from " + where + " import " + what for where, what in imports)


def _imports(text, module):
    """Returns True if `text` imports `module`, by `import` or by `from ... import`."""
    package, _, name = module.rpartition(".")
    return bool(re.search(rf"\bfrom {re.escape(module)} import |"
                          rf"\bfrom {re.escape(package)} import [\w, ]*\b{name}\b", text))
