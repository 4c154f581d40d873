// right: one line without an if: the factor is 1 where the maximum stays
for (int j = t; j < cols; j += blockDim.x) {
  float v = row[j], top = fmaxf(m, v);
  sum = sum * expf(m - top) + expf(v - top);
  m = top;
}
