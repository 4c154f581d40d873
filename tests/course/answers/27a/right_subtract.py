# right: the largest first, and the rest by subtraction
c = k // (kh * kw)
rest = k - c * kh * kw
i = rest // kw
j = rest - i * kw
n = p // (oh * ow)
rest = p - n * oh * ow
r = rest // ow
return (c, i, j), (n, r, rest - r * ow)
