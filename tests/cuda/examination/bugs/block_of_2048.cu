// A block has 1024 threads at most.
// kind: wrong launch
/* launch
x = ramp(2048)
cu("twice")((1,), (2048,), (x,))  # BUG
*/
extern "C" __global__ void twice(float* x) {
  x[threadIdx.x] *= 2;
}
