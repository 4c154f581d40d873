# right: a while loop from the other end, negative indices by the modulo
left_over = p - 1
while left_over:
    s = p - 1 - left_over
    which = (t.rank + p - s - 1) % p
    got = t.sendrecv(chunk[(which + 1) % p], right, scratch[: len(chunk[which])], left)
    chunk[which][:] = chunk[which] + got
    left_over -= 1
