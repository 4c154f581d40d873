// right: the guard as an early return, in float as the text says
const int i = threadIdx.x + blockDim.x * blockIdx.x;
if (i >= n) return;
float sum = to_float(a[i]);
sum += to_float(b[i]);
sum += to_float(c[i]);
sum += to_float(bias[i % cols]);
out[i] = from_float<T>(fmaxf(sum, 0.0f));
