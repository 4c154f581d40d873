// right: a grid-stride loop, which here goes round once
for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
  float sum = to_float(a[i]) + to_float(b[i]) + to_float(c[i]) + to_float(bias[i % cols]);
  out[i] = from_float<T>(sum < 0 ? 0.0f : sum);
}
