# wrong: losses are only added up, and put in at the end with the wrong sign
for number in x:
    new = total + number
    lost = lost + ((new - total) - number)
    total = new
total = total + lost
