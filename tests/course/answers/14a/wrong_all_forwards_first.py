# wrong: every forward, then every backward
return [("F", i) for i in range(m)] + [("B", i) for i in range(m)]
