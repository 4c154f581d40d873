# wrong: the same tree twice
return list(first)
