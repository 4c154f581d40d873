# wrong: compared with the mean: the slowest may be further behind than s
return clocks[worker] - sum(clocks.values()) / len(clocks) <= s
