// wrong: the sum so far keeps the old maximum in it
for (int j = t; j < cols; j += blockDim.x) {
  float v = row[j];
  if (v > m) m = v;
  sum += expf(v - m);
}
