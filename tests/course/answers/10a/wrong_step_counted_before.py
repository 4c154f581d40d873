# wrong: counts the step that would begin as done: one step too strict
return clocks[worker] + 1 - min(clocks.values()) <= s
