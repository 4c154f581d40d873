// right: the maximum moves with each key
__syncthreads();
for (int j = 0; j < n; ++j) {
  float score = 0;
  for (int c = 0; c < E; ++c) score += row[c] * kt[j][c];
  const float most = fmaxf(top, score), factor = expf(top - most), weight = expf(score - most);
  total = factor * total + weight;
  for (int c = 0; c < E; ++c) sum[c] = factor * sum[c] + weight * vt[j][c];
  top = most;
}
__syncthreads();
