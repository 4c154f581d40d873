// wrong: the bias of the row, i / cols, in place of the column's
int i = blockIdx.x * blockDim.x + threadIdx.x;
if (i < n) {
  float sum = to_float(a[i]) + to_float(b[i]) + to_float(c[i]) + to_float(bias[i / cols]);
  out[i] = from_float<T>(sum > 0 ? sum : 0);
}
