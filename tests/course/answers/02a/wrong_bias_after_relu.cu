// wrong: the bias is added behind the maximum, so results can be negative
int i = blockIdx.x * blockDim.x + threadIdx.x;
if (i < n) {
  float sum = to_float(a[i]) + to_float(b[i]) + to_float(c[i]);
  out[i] = from_float<T>((sum > 0 ? sum : 0) + to_float(bias[i % cols]));
}
