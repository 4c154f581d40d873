# wrong: one after the other, no tree
total = x[0]
for number in x[1:]:
    total = total + number
return total
