// wrong: every thread goes over the whole row, so each element is counted blockDim.x times
for (int j = 0; j < cols; ++j) {
  float v = row[j];
  float top = fmaxf(m, v);
  sum = sum * expf(m - top) + expf(v - top);
  m = top;
}
