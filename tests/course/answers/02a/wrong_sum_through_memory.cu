// wrong: a + b goes to out and comes back: 8 bytes an element more, what fusing should save
int i = blockIdx.x * blockDim.x + threadIdx.x;
if (i < n) {
  out[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
  out[i] = from_float<T>(to_float(out[i]) + to_float(c[i]));
  float sum = to_float(out[i]) + to_float(bias[i % cols]);
  out[i] = from_float<T>(sum > 0 ? sum : 0);
}
