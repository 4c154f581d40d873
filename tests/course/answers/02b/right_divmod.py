# right: divmod, and one more for a rest
whole, rest = divmod(n, block)
return whole + (1 if rest else 0)
