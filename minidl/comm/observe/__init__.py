"""Communication counted, and explained when it stops. How it works: docs/observe.md

    ledger.py        counts bytes and messages by peer, collective, group and line of code
    watch.py         the ranks agree on a collective before it starts
    signature.py     what they agree on: a call as data
    stragglers.py    which rank computes longer than the others
    waits.py         who waits for whom, and who can never go on
    lookout.py       asks all ranks what they wait for, and reports
    side_channel.py  how those threads talk: TCP
    door.py          who is heard there: only who knows the token
    places.py        the file and line of the user's code
"""
