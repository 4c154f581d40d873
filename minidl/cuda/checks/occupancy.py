"""Computes how many blocks of a kernel fit on one SM of a named GPU, and which resource limits
them.

    A100: 2,048 threads, 65,536 registers, 164 KiB of shared memory on an SM
    block of 256 threads, 40 registers each, 16 KiB of shared memory:
        threads   2048 / 256           = 8 blocks
        registers 65536 / (8 * 1280)   = 6        a warp takes 32 * 40, rounded up to 256
        shared    164 / (16 + 1)       = 9        the driver takes 1 KiB for each block
        the smallest number, 6 blocks: 48 of 64 warps, 75 %

Source: CUDA programming guide, "Compute Capabilities", table of technical specifications; CUDA
occupancy calculator.   Test: tests/cuda/checks/test_profile.py
"""

from collections import namedtuple
from functools import reduce

# The limits of one SM. reserved_kib: KiB of shared memory that the driver takes for each block.
Gpu = namedtuple("Gpu", "arch threads blocks registers shared_kib reserved_kib")
GPUS = {
    "T4": Gpu("sm_75", 1024, 16, 65536, 64, 0),
    "A100": Gpu("sm_80", 2048, 32, 65536, 164, 1),
    "RTX3090": Gpu("sm_86", 1536, 16, 65536, 100, 1),
    "RTX4090": Gpu("sm_89", 1536, 24, 65536, 100, 1),
    "L4": Gpu("sm_89", 1536, 24, 65536, 100, 1),
    "H100": Gpu("sm_90", 2048, 32, 65536, 228, 1),
    "H200": Gpu("sm_90", 2048, 32, 65536, 228, 1),
}
# A warp gets registers in units of REGISTER_UNIT. A block gets bytes of shared memory in units of
# SHARED_UNIT.
WARP, REGISTER_UNIT, SHARED_UNIT = 32, 256, 128

# limits: {resource: the number of blocks that this resource allows}
Occupancy = namedtuple("Occupancy", "gpu blocks warps max_warps limits")


def occupancy(gpu, threads, registers, shared_bytes):
    """Returns the Occupancy of a kernel on the GPU named `gpu`.

    threads:      threads of a block.
    registers:    registers of a thread, or None if not known.
    shared_bytes: bytes of shared memory of a block."""
    g = GPUS[gpu]
    warps = -(-threads // WARP)
    limits = {"threads": min(g.blocks, g.threads // (warps * WARP))}
    if registers:
        of_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        # an SM has four schedulers, each with its own quarter of the registers
        limits["registers"] = g.registers // 4 // of_warp * 4 // warps
    block = -(-shared_bytes // SHARED_UNIT) * SHARED_UNIT + g.reserved_kib * 1024
    if block:
        limits["shared memory"] = g.shared_kib * 1024 // block
    blocks = min(limits.values())
    return Occupancy(gpu, blocks, blocks * warps, g.threads // WARP, limits)


def sentence(o):
    """Returns a sentence for the Occupancy `o`, such as 'A100: 6 blocks an SM, 48 of 64 warps, 75%,
    limited by registers'."""
    least = [what for what, n in o.limits.items() if n == o.blocks]
    limits = reduce(lambda a, b: f"{a}, and by {b}", least)
    share = f"{100 * o.warps / o.max_warps:.0f}%"
    return (f"{o.gpu}: {o.blocks} blocks an SM, {o.warps} of {o.max_warps} warps, {share}, "
            f"limited by {limits}")
