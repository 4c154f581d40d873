# wrong: < in place of <=: with s = 0 nobody may ever begin
return clocks[worker] - min(clocks.values()) < s
