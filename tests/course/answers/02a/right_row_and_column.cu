// right: row and column by a division
int i = blockIdx.x * blockDim.x + threadIdx.x;
if (i < n) {
  int row = i / cols, column = i - row * cols;
  float v = to_float(a[i]) + to_float(b[i]) + to_float(c[i]) + to_float(bias[column]);
  if (!(v > 0)) v = 0;
  out[i] = from_float<T>(v);
}
