# wrong: local from the first step
return ["weights" if (i + 1) % period == 0 else None for i in range(len(rates))]
