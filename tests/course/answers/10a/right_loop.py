# right: a loop
for other in clocks:
    if clocks[other] + s < clocks[worker]:
        return False
return True
