# wrong: down a column of the window first
j, i = k // kh % kw, k % kh
return (k // (kh * kw), i, j), (p // (oh * ow), p // ow % oh, p % ow)
