"""The command `minidl`.

    main          its words and options
    launcher      minidl run
    doctor        minidl doctor: this machine
    doctor_links  minidl doctor --links: the network between ranks
"""
