// right: the barrier at the head of each step, and one behind the loop
s[t] = mine;
for (int d = blockDim.x >> 1; d >= 1; d >>= 1) {
  __syncthreads();
  if (t < d) s[t] = s[t] + s[t + d];
}
__syncthreads();
