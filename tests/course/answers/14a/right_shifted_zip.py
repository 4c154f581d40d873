# right: forwards and backwards side by side, shifted by what comes first
from itertools import zip_longest

ahead = p - s - 1
forwards = [("F", i) for i in range(m)]
backwards = [None] * min(ahead, m) + [("B", i) for i in range(m)]
order_of_parts = []
for f, b in zip_longest(forwards, backwards):
    if f is not None:
        order_of_parts.append(f)
    if b is not None:
        order_of_parts.append(b)
return order_of_parts
