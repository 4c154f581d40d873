// A grid's second dimension is 65,535 at most; rows belong in the first.
// kind: wrong launch
/* launch
x = ramp(70000)
cu("rows")((1, 70000), (1,), (x,))  # BUG
*/
extern "C" __global__ void rows(float* x) {
  x[blockIdx.y] += threadIdx.x;
}
