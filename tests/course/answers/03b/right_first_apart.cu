// right: the first element sets m, the others follow
if (t < cols) {
  m = row[t];
  sum = 1;
}
for (int j = t + blockDim.x; j < cols; j += blockDim.x) {
  float v = row[j], before = m;
  m = max(m, v);
  if (m != before) sum *= expf(before - m);
  sum += expf(v - m);
}
