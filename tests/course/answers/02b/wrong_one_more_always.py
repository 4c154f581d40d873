# wrong: a block too many where the block divides n
return n // block + 1
