# right: for even p neighbours change places (r ^ 1), for odd p all move on by one; a comprehension
new = [r ^ 1 if p % 2 == 0 else (r + 1) % p for r in range(p)]
old = {new[r]: r for r in range(p)}
return [None if first[old[r]] is None else new[first[old[r]]] for r in range(p)]
