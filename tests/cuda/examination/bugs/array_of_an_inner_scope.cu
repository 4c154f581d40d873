// A pointer is set to an array inside a loop and read behind it, where the array is gone.
// kind: stale pointer
/* launch
x, out = ramp(256), np.zeros(32, np.float32)
cu("largest_of_four")((1,), (32,), (out, x))
*/
__device__ __noinline__ float smallest(float a, float b) {
  float both[4] = {a, b, a + b, a * b};
  float low = both[0];
  for (volatile int k = 1; k < 4; ++k) low = fminf(low, both[k]);
  return low;
}

extern "C" __global__ void largest_of_four(float* out, const float* x) {
  const float* best = nullptr;
  float most = -1e30f;
  for (int part = 0; part < 2; ++part) {
    float four[4];
    float sum = 0;
    for (int k = 0; k < 4; ++k) sum += four[k] = x[threadIdx.x * 8 + part * 4 + k];
    if (sum > most) most = sum, best = four;
  }
  float low = smallest(most, x[threadIdx.x]);
  out[threadIdx.x] = low + best[threadIdx.x % 4];  // BUG: four ended with the loop
}
