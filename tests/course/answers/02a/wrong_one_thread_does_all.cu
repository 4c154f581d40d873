// wrong: thread 0 loops over all elements, the others do nothing
int i = blockIdx.x * blockDim.x + threadIdx.x;
if (i == 0) {
  for (int j = 0; j < n; ++j) {
    float sum = to_float(a[j]) + to_float(b[j]) + to_float(c[j]) + to_float(bias[j % cols]);
    out[j] = from_float<T>(sum > 0 ? sum : 0);
  }
}
