// wrong: e^(new - old) in place of e^(old - new)
for (int j = t; j < cols; j += blockDim.x) {
  float v = row[j];
  if (v > m) {
    if (sum > 0) sum *= expf(v - m);
    m = v;
  }
  sum += expf(v - m);
}
