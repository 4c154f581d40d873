// wrong: a new maximum does not count itself
for (int j = t; j < cols; j += blockDim.x) {
  float v = row[j];
  if (v > m) {
    sum *= expf(m - v);
    m = v;
  } else {
    sum += expf(v - m);
  }
}
