# wrong: the module's block of 256 in place of the argument
return (n + BLOCK - 1) // BLOCK
