// wrong: no guard: the last block reads and writes past the end
int i = blockIdx.x * blockDim.x + threadIdx.x;
float sum = to_float(a[i]) + to_float(b[i]) + to_float(c[i]) + to_float(bias[i % cols]);
out[i] = from_float<T>(fmaxf(sum, 0));
