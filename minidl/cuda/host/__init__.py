"""Runs a .cu file on the CPU: reads the file, translates it to C++, compiles and launches it.

    includes    replaces #include by the file's text     scan        finds functions in the text
    source      finds kernels and their templates        parameters  reads a kernel's parameters
    reach       finds the code that a kernel can run     cpu         makes the C++ text
    flat        makes a fast loop over the threads       launchers   writes C++ that starts a kernel
    compiler    compiles, and keeps the libraries        arguments   checks and packs arguments
    variables   finds variables outside of functions     arena       copies arrays between guards
    selfcheck   compares the fast loop with a plain one
    shared      finds __shared__ variables, and puts guards around them
"""
