# right: by index
return second[0] * first[0], second[1] + second[0] * first[1]
