"""Fused kernels as Functions, a file for each of kernels/: NumPy reference, launch, Function.

dispatch.py is the only place that chooses GPU, CPU kernel or plain op.
"""
