# wrong: total is replaced before the loss is computed, which is then always minus y
for number in x:
    y = number - lost
    total = total + y
    lost = (total - total) - y
