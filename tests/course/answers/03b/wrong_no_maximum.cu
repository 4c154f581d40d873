// wrong: without a maximum, e^x overflows for large x
m = 0;
for (int j = t; j < cols; j += blockDim.x) sum += expf(row[j]);
