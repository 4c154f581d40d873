# wrong: the loss is taken against number, not against y: what was lost before is forgotten
for number in x:
    y = number - lost
    new = total + y
    lost = (new - total) - number
    total = new
