"""Further kernels: reference and launch of each, as in minidl/fused/.

    lamb   moments and norms, then the step
"""
