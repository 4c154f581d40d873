# wrong: the number of steps itself is bounded, not the lead
return clocks[worker] <= s
