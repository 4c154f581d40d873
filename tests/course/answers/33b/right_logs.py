# right: in logarithms
total = alpha + beta
log_n = (math.log(alpha * a / (beta * b)) + beta * math.log(c / 6)) / total
n = math.exp(log_n)
return n, c / (6 * n)
