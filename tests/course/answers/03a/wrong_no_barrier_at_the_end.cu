// wrong: the last step comes after the barrier, so other threads may read s[0] too early
s[t] = mine;
for (int d = blockDim.x / 2; d > 0; d /= 2) {
  __syncthreads();
  if (t < d) s[t] += s[t + d];
}
