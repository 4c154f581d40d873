// wrong: no barrier before the tiles are read
float s[KEYS], most = top;
for (int j = 0; j < n; ++j) {
  float score = 0;
  for (int c = 0; c < E; ++c) score = fmaf(row[c], kt[j][c], score);
  s[j] = score;
  most = fmaxf(most, score);
}
const float factor = expf(top - most);
total *= factor;
for (int c = 0; c < E; ++c) sum[c] *= factor;
for (int j = 0; j < n; ++j) {
  const float weight = expf(s[j] - most);
  total += weight;
  for (int c = 0; c < E; ++c) sum[c] += weight * vt[j][c];
}
top = most;
__syncthreads();
