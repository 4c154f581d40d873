# right: a step as a function, and an iterator
def step(total, lost, number):
    y = number - lost
    new = total + y
    arrived = new - total
    return new, arrived - y

numbers = iter(x)
for number in numbers:
    total, lost = step(total, lost, number)
