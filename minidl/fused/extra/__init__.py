"""Further kernels: reference and launch of each, as in minidl/fused/.

    codecs  payloads of float16 and int8, the bytes of comm/codec.py
    lamb    moments and norms, then the step
"""
