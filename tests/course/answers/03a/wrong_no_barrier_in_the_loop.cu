// wrong: no barrier between the steps
s[t] = mine;
__syncthreads();
for (int d = blockDim.x / 2; d > 0; d /= 2) {
  if (t < d) s[t] += s[t + d];
}
__syncthreads();
