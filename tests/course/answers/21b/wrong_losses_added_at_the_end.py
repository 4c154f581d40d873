# wrong: losses are summed up and taken off at the end only, in the same few digits
for number in x:
    new = total + number
    lost = lost + ((new - total) - number)
    total = new
total = total + lost
