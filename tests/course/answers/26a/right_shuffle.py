# right: whole steps are shuffled in place, then turned round
todo = [b[:] for b in batches]
missing = (size - len(todo) % size) % size
while missing:
    sizes = [len(b) for b in todo]
    k = sizes.index(max(sizes))
    b = todo[k]
    todo[k] = b[: len(b) // 2]
    todo.insert(k + 1, b[len(b) // 2 :])
    missing -= 1
steps = [todo[i : i + size] for i in range(0, len(todo), size)]
order = np.arange(len(steps))
rng.shuffle(order)
steps = [steps[i] for i in order]
return [list(share) for share in zip(*steps)]
