"""Fused kernels as Functions: one file per kernel of kernels/, 1 NumPy reference, 2 launch, 3 Function.

dispatch.py is the only place that chooses GPU, CPU kernel or plain op.
"""
