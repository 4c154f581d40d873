"""The command `minidl`.

    main          its commands and options
    launcher      minidl run
    doctor        minidl doctor: this machine
    doctor_links  minidl doctor --links: the network between ranks
    kernel_bench  minidl kernel bench: are the rungs of a kernel right, and how fast?
    kernel_rungs  what it runs
"""
