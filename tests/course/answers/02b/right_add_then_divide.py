# right: the usual C idiom
return (n + block - 1) // block
