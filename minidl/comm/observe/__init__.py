"""Counts the communication, and explains why a run hangs. How it works: docs/observe.md

    ledger.py        counts bytes and messages by peer, collective, group and line of your program
    watch.py         the ranks compare a collective call before it starts
    signature.py     describes a call as data, so that the ranks can compare their calls
    stragglers.py    finds a rank that computes longer than the others
    waits.py         finds the ranks that can never continue; it compares the waits of all ranks
    lookout.py       threads that ask all ranks for their waits, and report
    side_channel.py  the TCP connections of these threads
    door.py          accepts only connections that prove that they know a token
    places.py        the file and line of the user's code
"""
