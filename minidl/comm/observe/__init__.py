"""Communication counted, and explained when it stops.

    ledger.py        counts bytes and messages by peer, collective, group and line of code
    watch.py         ranks agree on a collective before it starts
    signature.py     on what they agree: a call as data
    lookout.py       where is every rank?
    side_channel.py  how the lookouts talk
    waits.py         who waits for whom, and can anybody go on?
    places.py        the file and line of the user's code
"""
