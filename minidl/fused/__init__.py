"""Fused kernels as Functions, a file for each of kernels/: 1 its formula in NumPy, 2 its launch,
3 the Function with the gradient, where it has one.

dispatch.py is the only place that chooses GPU, CPU kernel or plain op.
"""
