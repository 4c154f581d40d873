// right: one expf an element, of minus the distance
int j = t;
while (j < cols) {
  const float v = row[j];
  const float e = expf(-fabsf(v - m));
  if (v > m) {
    sum = sum * e + 1.0f;
    m = v;
  } else {
    sum += e;
  }
  j += blockDim.x;
}
