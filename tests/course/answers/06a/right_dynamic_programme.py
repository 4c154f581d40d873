# right: from the left, the states (bytes held, layers twice) that no other state beats
n = len(sizes) - 1
states = {0: [(0, 0, [])]}
for start in range(n):
    for held, twice, plan in states.get(start, []):
        for stop in range(start + 1, n + 1):
            inside = sum(sizes[start : stop + 1])
            for again in (False, True):
                result = sizes[n] if again or stop < n else 0
                if held + inside + result > budget:
                    continue
                more = sizes[start] if again else sum(sizes[start:stop])
                state = (held + more, twice + again * (stop - start), [*plan, (start, stop, again)])
                others = states.setdefault(stop, [])
                if not any(h <= state[0] and w <= state[1] for h, w, _ in others):
                    others[:] = [s for s in others if not (s[0] >= state[0] and s[1] >= state[1])]
                    others.append(state)
ends = states.get(n, [])
return min(ends, key=lambda s: s[1])[2] if ends else None
