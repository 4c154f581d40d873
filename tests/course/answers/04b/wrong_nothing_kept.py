# wrong: an ordinary sum; lost stays 0
for number in x:
    total = total + number
