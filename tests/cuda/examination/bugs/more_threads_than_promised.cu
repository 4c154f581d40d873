// The kernel promises the compiler blocks of 128 threads at most, and is launched with 256.
// kind: wrong launch
/* launch
x = ramp(256)
cu("twice")((1,), (256,), (x,))  # BUG: __launch_bounds__(128)
*/
extern "C" __global__ void __launch_bounds__(128) twice(float* x) {
  x[threadIdx.x] *= 2;
}
