# wrong: compared with the fastest: nobody is ever ahead of that one
return clocks[worker] - max(clocks.values()) <= s
