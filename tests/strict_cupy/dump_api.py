"""Writes cupy/api.json: what the installed CuPy offers, for the stand-in. Needs CuPy, no GPU.

    python tests/strict_cupy/dump_api.py            write it
    python tests/strict_cupy/dump_api.py --check    fail, with the differences, if it would be
                                                    another one

    functions, ndarray   name -> signature, or null where Cython hides it
    ufuncs, special      name -> its loops, as 'ff->f'
    classes              of cupy.cuda and of RawModule: class -> method -> signature
    unhashable           classes whose objects are no keys of a dict
    modules              of cupy -> its public names
"""

import inspect
import json
import re
import sys
import warnings
from pathlib import Path

FILE = Path(__file__).parent / "cupy" / "api.json"
CLASSES = ("Device Event Stream ExternalStream MemoryPointer MemoryPool PinnedMemoryPool MemoryHook"
           " UnownedMemory Graph").split()
C_TYPES = ("int bool bint Py_ssize_t ptrdiff_t size_t intptr_t _ndarray_base ndarray bytes tuple"
           " MemoryPointer BaseMemory unicode str Module").split()


def text(obj):
    """The signature as Python source: its own, or Cython's first line of docstring, or None."""
    try:
        found = re.sub(r"<class '(\w+)'>", r"\1", str(inspect.signature(obj)))
        return re.sub("<[^>]*>", "...", found)  # a default that is an object
    except (TypeError, ValueError):
        pass
    line = (getattr(obj, "__doc__", None) or "").split("\n")[0]
    found = re.match(r"[\w.]*?\w+(\(.*?\))( ->|$)", line)
    return found and re.sub(rf"\b(?:{'|'.join(C_TYPES)}) +(\w+)", r"\1", found[1])


def public(obj):
    return sorted(name for name in dir(obj) if not name.startswith("_"))


def ufuncs(module, kind):
    found = {name: getattr(module, name) for name in public(module)}
    return {name: {"nin": f.nin, "nout": f.nout, "types": list(f.types)}
            for name, f in found.items() if isinstance(f, kind)}


def methods(kind):
    return {name: text(getattr(kind, name)) if callable(getattr(kind, name)) else None
            for name in public(kind)}


def api():
    """All of it."""
    import cupy
    import ml_dtypes  # noqa: F401  CuPy has loops for bfloat16 where it is installed
    from cupyx.scipy import special

    found = {"version": cupy.__version__, "functions": {}, "modules": {}, "values": []}
    found["ufuncs"] = ufuncs(cupy, cupy.ufunc)
    for name in public(cupy):
        obj = getattr(cupy, name)
        if isinstance(obj, cupy.ufunc):
            continue
        if inspect.ismodule(obj):
            found["modules"][name] = public(obj)
        elif inspect.isclass(obj) or not callable(obj):
            found["values"].append(name)
        else:
            found["functions"][name] = text(obj)
    found["ndarray"] = {name: text(getattr(cupy.ndarray, name))
                        if callable(getattr(cupy.ndarray, name)) and name[0] != "_" else None
                        for name in dir(cupy.ndarray)}
    found["classes"] = {name: methods(getattr(cupy.cuda, name)) for name in CLASSES}
    found["classes"] |= {name: methods(getattr(cupy, name)) for name in ("RawModule", "RawKernel")}
    kinds = {"ndarray": cupy.ndarray, **{name: getattr(cupy.cuda, name) for name in CLASSES}}
    found["unhashable"] = sorted(name for name, kind in kinds.items() if kind.__hash__ is None)
    found["cuda"] = {name: text(getattr(cupy.cuda, name)) for name in public(cupy.cuda)
                     if inspect.isroutine(getattr(cupy.cuda, name))}
    found["runtime"] = public(cupy.cuda.runtime)
    found["stride_tricks"] = {name: text(getattr(cupy.lib.stride_tricks, name))
                              for name in public(cupy.lib.stride_tricks)}
    found["special"] = ufuncs(special, cupy.ufunc)
    return found


def differences(old, new, path=""):
    """A line for each entry that differs."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [f"{path}: recorded {old!r}, installed {new!r}"]
    lines = []
    for key in sorted(set(old) | set(new)):
        lines += differences(old.get(key, "nothing"), new.get(key, "nothing"), f"{path}.{key}")
    return lines


def main(arguments):
    here = Path(__file__).parent.resolve()
    sys.path[:] = [p for p in sys.path if Path(p).resolve() != here]  # the stand-in's
    warnings.simplefilter("ignore")  # "CUDA path could not be detected"
    new = api()
    if "--check" in arguments:
        lines = differences(json.loads(FILE.read_text()), json.loads(json.dumps(new)))
        print("\n".join(lines) or f"CuPy {new['version']} is as recorded")
        return bool(lines)
    FILE.write_text(json.dumps(new, indent=0, sort_keys=True) + "\n")
    print(f"CuPy {new['version']}: {len(new['functions'])} functions, {len(new['ufuncs'])} ufuncs")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
