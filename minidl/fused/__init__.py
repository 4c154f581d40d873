"""Fused kernels, a file for each of kernels/: 1 its formula in NumPy, 2 its launch.

The ops that run them are minidl/ops: one Function each, whose forward and backward ask dispatch.py,
the only place that chooses between the kernel and NumPy. add3.py and fuse.py have Functions of
their own, because there is no op they belong to: a lesson, and kernels generated from Python.
"""
