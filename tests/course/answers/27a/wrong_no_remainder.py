# wrong: the row of the window goes on into the next channel
return (k // (kh * kw), k // kw, k % kw), (p // (oh * ow), p // ow % oh, p % ow)
