"""Kernels under watch: every access to memory is looked at.

    checker    runs a kernel with every access watched
    hooks      the compiled side of it
    sentences  findings in words
    report     what is printed
"""
