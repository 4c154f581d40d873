# wrong: what was lost is added once more in place of being given back
for number in x:
    y = number + lost
    new = total + y
    lost = (new - total) - y
    total = new
