# wrong: a chain in place of a tree: every rank but two is inner, and the steps are p-1
return [r + 1 if r + 1 < p else None for r in range(p)]
