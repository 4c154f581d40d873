// wrong: the step d = 1 is missing: s[0] is the sum of the even threads
s[t] = mine;
__syncthreads();
for (int d = blockDim.x / 2; d > 1; d /= 2) {
  if (t < d) s[t] += s[t + d];
  __syncthreads();
}
