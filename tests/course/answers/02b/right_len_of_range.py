# right: by counting the starts of the blocks
return len(range(0, n, block))
