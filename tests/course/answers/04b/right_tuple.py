# right: both names in one assignment
for number in x:
    y = number - lost
    total, lost = total + y, ((total + y) - total) - y
