"""Compiles one file with NVRTC, in a process of its own.

nvrtc.py starts it as `python -I nvrtc_process.py`.

    stdin    {"library": path, "text": ..., "name": ..., "flags": [...], "instances": [...]}
    stdout   {"status": NVRTC's status, "log": NVRTC's log}

NVRTC can harm its process. For some texts it removes the limit of the stack's size. Then an endless
recursion uses all memory of the machine. And if NVRTC crashes, only this process ends.

Source: NVRTC's documentation.   Test: tests/cuda/test_nvrtc.py
"""

import ctypes
import json
import sys


def compiled(library, text, name, flags, instances):
    """Returns (status, log). instances: the names of template instances to compile too, such as
    'scale<float, 4>'."""
    nvrtc = ctypes.CDLL(library)
    string, pointer = ctypes.c_char_p, ctypes.c_void_p
    nvrtc.nvrtcGetErrorString.restype = string
    nvrtc.nvrtcCreateProgram.argtypes = [pointer, string, string, ctypes.c_int, pointer, pointer]
    nvrtc.nvrtcAddNameExpression.argtypes = [pointer, string]
    nvrtc.nvrtcCompileProgram.argtypes = [pointer, ctypes.c_int, pointer]
    nvrtc.nvrtcGetProgramLogSize.argtypes = [pointer, pointer]
    nvrtc.nvrtcGetProgramLog.argtypes = [pointer, pointer]

    def ok(status):
        if status:
            raise RuntimeError(nvrtc.nvrtcGetErrorString(status).decode())

    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    ok(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None))
    for instance in instances:
        ok(nvrtc.nvrtcAddNameExpression(program, instance.encode()))
    array = (string * len(flags))(*(f.encode() for f in flags))
    status = nvrtc.nvrtcCompileProgram(program, len(flags), array)
    ok(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value)
    ok(nvrtc.nvrtcGetProgramLog(program, log))
    return status, log.value.decode()


if __name__ == "__main__":
    status, log = compiled(**json.load(sys.stdin))
    json.dump({"status": status, "log": log}, sys.stdout)
