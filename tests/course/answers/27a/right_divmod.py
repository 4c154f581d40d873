# right: by divmod, from the fastest index to the slowest
k, j = divmod(k, kw)
c, i = divmod(k, kh)
p, s = divmod(p, ow)
n, r = divmod(p, oh)
return (c, i, j), (n, r, s)
