# right: the loss with the other sign, added to the next number
for i in range(len(x)):
    y = x[i] + lost
    before = total
    total = before + y
    lost = y - (total - before)
