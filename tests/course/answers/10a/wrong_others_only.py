# wrong: leaves itself out, and fails when nobody else is left
return clocks[worker] - min(c for w, c in clocks.items() if w != worker) <= s
