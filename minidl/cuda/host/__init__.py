"""A .cu file on the CPU: read it, make C++ of it, compile, launch.

    includes    #include, and where the files are        scan        functions in the text
    source      kernels and their templates              parameters  of a kernel
    cpu         the C++ form                             flat        the fast loop over threads
    launchers   the functions that C calls               compiler    finds one, compiles, caches
    arguments   of a launch, checked and packed          arena       arrays between guard pages
    variables   of a file, outside of its functions      selfcheck   is the fast loop right?
    reach       what a kernel can run
    shared      The __shared__ variables of a kernel's C++, and the guards behind them in a plain
                launch
"""
