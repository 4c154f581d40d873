# wrong: a row of the window has kh numbers
c, rest = k // (kh * kw), k % (kh * kw)
return (c, rest // kh, rest % kh), (p // (oh * ow), p // ow % oh, p % ow)
