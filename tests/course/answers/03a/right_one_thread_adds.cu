// right: slow, but right: thread 0 adds up what all have written
s[t] = mine;
__syncthreads();
if (t == 0) {
  float sum = 0;
  for (int k = 0; k < blockDim.x; ++k) sum += s[k];
  s[0] = sum;
}
__syncthreads();
