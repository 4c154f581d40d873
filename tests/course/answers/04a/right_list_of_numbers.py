# right: a Python list of NumPy numbers
numbers = list(x)
while len(numbers) > 1:
    pairs = [a + b for a, b in zip(numbers[0::2], numbers[1::2], strict=False)]
    numbers = pairs + ([numbers[-1]] if len(numbers) % 2 else [])
return numbers[0]
