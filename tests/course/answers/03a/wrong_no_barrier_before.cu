// wrong: no barrier between writing s[t] and the first step
s[t] = mine;
for (int d = blockDim.x / 2; d > 0; d /= 2) {
  if (t < d) s[t] += s[t + d];
  __syncthreads();
}
