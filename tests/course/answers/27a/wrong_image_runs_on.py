# wrong: the row of the result goes on into the next image
return (k // (kh * kw), k // kw % kh, k % kw), (p // (oh * ow), p // ow, p % ow)
