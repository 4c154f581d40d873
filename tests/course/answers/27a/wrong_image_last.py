# wrong: the image is returned behind its places
return (k // (kh * kw), k // kw % kh, k % kw), (p // ow % oh, p % ow, p // (oh * ow))
