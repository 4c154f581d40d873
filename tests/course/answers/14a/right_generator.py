# right: two iterators, and a list of which one is next
first = min(p - s, m)
kinds = "F" * first + "BF" * (m - first) + "B" * first
numbers = {"F": iter(range(m)), "B": iter(range(m))}
return [(kind, next(numbers[kind])) for kind in kinds]
