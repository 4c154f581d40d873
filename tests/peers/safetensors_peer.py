"""safetensors' own tests, whose files minidl reads.

    its Python tests   The library writes the files, and minidl's header.read reads them. The tests
                       see it through the class Opened, which has the methods of safe_open.
    its Rust tests     Every text of bytes in them is given to the library and to minidl. What one
                       refuses, the other must refuse; what both take has the same tensors.
    damaged files      The same with each of these texts changed at random places.

The files of minidl's snapshots have no counterpart here: their tensors are flat regions, and an
index has the shapes. So the tests that compare written bytes are the library's own.
"""

import ast
import importlib.util
import inspect
import os
import re
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from minidl.snapshot import header
from tests.peers.sdist import unpacked

VERSION = "0.8.0"
FILES = ("test_simple", "test_handle", "test_pread_backend", "test_pt_comparison", "test_pt_model",
         "test_threadable")
N_DAMAGED = 300  # of each text, and as many for each tensor in it
SIGNS = b'{}[]",:0123456789-.e '  # the signs of JSON
# Names that safetensors.torch does not have, as its safe_open needs none: (dtype, numbers in one).
RARE = {"F8_E8M0": (torch.float8_e8m0fnu, 1), "F4": (torch.float4_e2m1fn_x2, 2)}
library_open = safetensors.safe_open


class NotMapped(Exception):
    """minidl has no such thing."""


class Opened:
    """A file, read by minidl, with the methods of safe_open."""

    n_read = 0

    def __init__(self, filename, framework, device="cpu", backend="mmap"):
        if backend not in ("mmap", "pread"):
            raise safetensors.SafetensorError(f"no backend {backend}")
        if device not in ("cpu", None):
            raise NotMapped("devices")
        self.path, self.torch, self.open = Path(filename), framework in ("pt", "torch"), True
        if not self.path.exists():
            raise NotMapped("the class of an error: of a missing file, too, it is ValueError")
        type(self).n_read += 1
        try:
            self.entries = header.read(self.path)
        except ValueError as error:
            raise safetensors.SafetensorError(str(error)) from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open = False

    def metadata(self):
        raise NotMapped("__metadata__: minidl checks it and gives it to nobody")

    def keys(self):
        if not self.open:
            raise safetensors.SafetensorError("the file is closed")
        return list(self.entries)

    def get_tensor(self, name):
        first, code, shape = self.entries[name]
        n = int(np.prod(shape, dtype=object)) * header.BITS[code] // 8
        with self.path.open("rb") as file:
            file.seek(first)
            data = bytearray(file.read(n))
        if self.torch and code in RARE:
            shape = [*shape[:-1], shape[-1] // RARE[code][1]] if shape else []
            return torch.frombuffer(data, dtype=RARE[code][0]).reshape(shape)
        if self.torch:
            return safetensors.torch._view2torch(
                [(name, {"dtype": code, "shape": list(shape), "data": data})])[name]
        return np.frombuffer(data, safetensors.numpy._getdtype(code)).reshape(shape)

    def get_tensors(self):
        return {name: self.get_tensor(name) for name in self.keys()}

    def get_slice(self, name):
        return Slice(self.get_tensor(name), self.entries[name])


class Slice:
    """What get_slice returns: the tensor, to be indexed."""

    def __init__(self, tensor, entry):
        self.tensor, self.entry = tensor, entry

    def get_shape(self):
        return list(self.entry.shape)

    def get_dtype(self):
        return self.entry.dtype

    def __getitem__(self, at):
        try:
            return self.tensor[at]
        except IndexError:
            raise NotMapped("the words of an error: minidl cuts no slices out of files") from None


def deserialize(data):
    """Returns [(name, its dtype, shape and bytes)], as the library's, read by minidl."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        entries = Opened(path, "np").entries
    found = []
    for name, (first, code, shape) in entries.items():
        n = int(np.prod(shape, dtype=object)) * header.BITS[code] // 8
        found.append((name, {"dtype": code, "shape": list(shape),
                             "data": bytearray(data[first : first + n])}))
    return found


def load(path):
    """Returns a module of tests that gets Opened for safe_open."""
    spec = importlib.util.spec_from_file_location(f"safetensors_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases(word=""):
    sources = unpacked("safetensors", VERSION)
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(
            safetensors, safe_open=Opened, deserialize=deserialize), mock.patch.multiple(
            safetensors.numpy, safe_open=Opened, deserialize=deserialize), mock.patch.multiple(
            safetensors.torch, safe_open=Opened, deserialize=deserialize):
        os.makedirs(os.path.join(folder, "tests", "data"))
        os.chdir(folder)
        try:
            for file in FILES:
                yield from of_file(load(sources / "bindings/python/tests" / f"{file}.py"), word)
        finally:
            os.chdir(here)
    for name, outcome, why in of_texts(texts(sources)):
        if word in name:
            yield name, outcome, why


def of_file(module, word):
    for name, it in list(vars(module).items()):
        if isinstance(it, type) and issubclass(it, unittest.TestCase):
            for test in unittest.defaultTestLoader.getTestCaseNames(it):
                if word in f"{name}.{test}":
                    yield f"{name}.{test}", *judged(it(test))
        elif name.startswith("test_") and inspect.isfunction(it) and word in name:
            yield name, *judged(unittest.FunctionTestCase(it))


def judged(test):
    """Returns (outcome, why) of a test; one that reads no file by minidl says nothing of it."""
    Opened.n_read, result = 0, unittest.TestResult()
    test.run(result)
    if result.skipped:
        return "not mapped", f"the library skips it: {result.skipped[0][1]}"
    for _, text in result.errors + result.failures:
        last = text.strip().splitlines()[-1]
        if "NotMapped" in last:
            return "not mapped", last.split("NotMapped: ")[-1]
        if "ModuleNotFoundError" in last:
            return "not mapped", last.removeprefix("ModuleNotFoundError: ")
        return "wrong", last[:300]
    return ("passed", "") if Opened.n_read else ("not mapped", "reads no file")


def texts(sources):
    """Returns the texts of bytes in the library's Rust tests, and two files of four tensors."""
    found = []
    for path in sorted(sources.glob("safetensors/src/*.rs")):
        for text in re.findall(r'\bb"((?:[^"\\]|\\.)*)"', path.read_text(), re.S):
            found.append(ast.literal_eval(f'b"{text}"'))
    tensors = {"a": np.ones(2, "f4"), "b": np.ones((2, 3), "f2"), "c": np.ones((0, 5), "i8"),
               "d": np.ones(1, "u1")}
    found += [safetensors.numpy.save(tensors, told) for told in (None, {"framework": "np"})]
    return [text for text in dict.fromkeys(found) if len(text) > 8]


def of_texts(found):
    rng = np.random.default_rng(5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        for i, text in enumerate(found):
            yield f"rust {i}", *compared(path, text)
            for j in range(N_DAMAGED * (1 + text.count(b"dtype"))):
                yield f"damaged {i}.{j}", *compared(path, damaged(rng, text))


def damaged(rng, text):
    """Returns the text changed at one to three places; every second one tells its length again."""
    n = int.from_bytes(text[:8], "little")
    whole = bool(rng.integers(2)) and 8 + n <= len(text)
    begin, end = (8, 8 + n) if whole else (0, len(text))
    made = bytearray(text[begin:end])
    for _ in range(rng.integers(1, 4)):
        at, how = int(rng.integers(max(len(made), 1))), rng.integers(6)
        if how == 0:
            made[at : at + 1] = bytes([rng.integers(256)])
        elif how == 1:
            del made[at : at + int(rng.integers(1, 4))]
        elif how == 2:
            made[at:at] = bytes(rng.choice(list(SIGNS), 2).astype(np.uint8))
        elif digits := [i for i, sign in enumerate(made) if sign in b"0123456789"]:
            made[rng.choice(digits)] = rng.choice(list(b"0123456789"))
    return (len(made).to_bytes(8, "little") if whole else b"") + bytes(made) + text[end:]


def compared(path, text):
    path.write_bytes(text)
    try:
        with library_open(path, framework="np") as file:
            want = {name: (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape())
                    for name in file.keys()}
    except safetensors.SafetensorError as error:
        want = f"refused: {error}"
    try:
        got = {name: (code, list(shape)) for name, (_, code, shape) in header.read(path).items()}
    except ValueError as error:
        got = f"refused: {error}"
    if isinstance(want, str) != isinstance(got, str) or isinstance(got, dict) and want != got:
        return "wrong", f"{text[:200]}: minidl {got}; the library {want}"
    return "passed", ""
