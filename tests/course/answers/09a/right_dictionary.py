# right: edges as a dictionary, renamed, and turned into a list again
def rename(r):
    if r is None:
        return None
    return (r + 1) % p if p % 2 else p - 1 - r

edges = {rename(child): rename(parent) for child, parent in enumerate(first)}
return [edges[r] for r in range(p)]
