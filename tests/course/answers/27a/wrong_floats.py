# wrong: a true division
return (np.floor(k / (kh * kw)), k // kw % kh, k % kw), (p // (oh * ow), p // ow % oh, p % ow)
