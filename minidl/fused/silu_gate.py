"""The gate of a SwiGLU layer in one pass: out = silu(a) * b, silu(a) = a / (1 + e^-a).

Saved: a and b, which the linear layers made; silu(a) never reaches memory. For models of your own:
GPT's MLP in minidl.nn is GELU's.

Source: Shazeer 2020 (arXiv 2002.05202).
Kernel: kernels/silu_gate.cu   Test: tests/fused/test_silu_gate.py
"""

import numpy as np

from minidl.function import Function
from minidl.fused.launch import contiguous, elementwise

FILE = "silu_gate.cu"


# ---- 1 reference ----


def reference(a, b):
    """(out, d out / da, d out / db) in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    s = 1 / (1 + np.exp(-a))
    return a * s * b, b * (s + a * s * (1 - s)), a * s


# ---- 2 launch and 3 Function ----


class SiluGate(Function):
    """silu(a) * b of equal shapes. Saves a and b."""

    promotes = "float"

    def forward(self, a, b):
        if a.shape != b.shape:
            raise ValueError(f"silu_gate: want equal shapes, got {a.shape} and {b.shape}")
        a, b = contiguous(self.xp, a), contiguous(self.xp, b)
        out = self.xp.empty_like(a)
        elementwise(FILE, "silu_gate", a.dtype, a.size, (out, a, b, a.size))
        self.save(a, b)
        return out

    def backward(self, gy):
        a, b = self.saved
        ga, gb = self.xp.empty_like(a), self.xp.empty_like(b)
        args = ga, gb, contiguous(self.xp, gy), a, b, a.size
        elementwise(FILE, "silu_gate_backward", a.dtype, a.size, args)
        return ga, gb


def silu_gate(a, b):
    """silu(a) * b, elementwise."""
    return SiluGate.apply(a, b)
