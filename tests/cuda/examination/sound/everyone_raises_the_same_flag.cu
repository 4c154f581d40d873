// Many threads write the same value to one flag: all orders leave it the same. A warning at most.
// kind: sound
/* launch
x, flag = ramp(256), np.zeros(1, np.int32)
x[[3, 77, 200]] = np.nan
cu("any_nan")((2,), (128,), (flag, x))
same(flag, 1)
*/
extern "C" __global__ void any_nan(int* flag, const float* x) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (isnan(x[i])) *flag = 1;
}
