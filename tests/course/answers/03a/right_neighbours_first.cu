// right: the tree from the leaves: neighbours first, then pairs of pairs
s[t] = mine;
__syncthreads();
for (int d = 1; d < blockDim.x; d *= 2) {
  if (t % (2 * d) == 0) s[t] += s[t + d];
  __syncthreads();
}
