# right: the remainder by a whole window first, then its row
in_window, in_image = k % (kh * kw), p % (oh * ow)
return ((k // (kh * kw), in_window // kw, in_window % kw),
        (p // (oh * ow), in_image // ow, in_image % ow))
