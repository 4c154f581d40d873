# wrong: in Python's float, which is float64
total = lost = 0.0
for number in x:
    y = float(number) - lost
    new = total + y
    lost = (new - total) - y
    total = new
total = x.dtype.type(total)
