# right: the slowest by sorting
slowest, *_ = sorted(clocks.values())
lead = clocks[worker] - slowest
return not lead > s
