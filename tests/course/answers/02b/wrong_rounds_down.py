# wrong: rounds down; the last elements have no thread
return n // block
